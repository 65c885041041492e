"""Print how heavy the code is: python scripts/weight.py [FOLDER] [--no-run].

FOLDER is a checkout of the project (by default this one). Without --no-run, the command of README is run with one
epoch and traced (about 30 s): the files and functions of the package that it calls, and how often the next function
that is called for the first time is in another room (folder) than the one before.
"""

import ast
import collections
import itertools
import json
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "recbole_unlearn"
COMMAND = [
    "--model=LightGCN", "--dataset=ml-100k", "--unlearn=obliviate", "--compare=retrain", "--epochs=1",
]  # fmt: skip


def trace() -> None:
    """Run the command in the working directory; print (file, function) of the package in the order of first calls."""
    root = f"{Path(PACKAGE).resolve()}/"
    calls: dict[tuple[str, str], None] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & 1  # CO_OPTIMIZED: not the body of a module or class
        if event == "call" and is_function and code.co_filename.startswith(root) and "<" not in code.co_name:
            caller = frame.f_back
            while caller and not caller.f_code.co_filename.startswith(root):
                caller = caller.f_back
            if caller is None or caller.f_code.co_name != "<module>":  # not a decorator at import
                calls.setdefault((code.co_filename.removeprefix(root), code.co_qualname))

    sys.path.insert(0, ".")
    sys.setprofile(note)
    try:
        runpy.run_path("run_unlearn.py", run_name="__main__")
    finally:
        sys.setprofile(None)
        print(json.dumps(list(calls)), file=sys.__stdout__)


def run_weight(folder: Path) -> str:
    """Files, functions and room changes of a traced run, in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, __file__, "--traced", *COMMAND, f"--output_dir={out}/run", f"--cache_dir={out}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return f"not measured: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}"
    calls = json.loads(done.stdout.splitlines()[-1])
    rooms = [file.split("/")[0] for file, _ in calls]
    changes = sum(one != other for one, other in itertools.pairwise(rooms))
    return f"{len({file for file, _ in calls})} · {len(calls)} · {changes}"


def module_name(path: Path) -> str:
    """The dotted name of a module, or of a room for its __init__.py."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module, known: set[str]) -> set[tuple[str, str]]:
    """(module, name) of all imports from the package; the name is empty where a whole module is imported."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add((whole, "") if whole in known else (node.module, alias.name))
    return found


def static_weight(folder: Path) -> dict[str, str]:
    """All that can be counted without running the code."""
    trees = {p.relative_to(folder): ast.parse(p.read_text()) for p in sorted((folder / PACKAGE).rglob("*.py"))}
    names = {module_name(path) for path in trees}
    imports = {module_name(path): imported(tree, names) for path, tree in trees.items()}
    rooms = {module_name(path) for path in trees if path.name == "__init__.py"}
    # The file that a room has a name from.
    homes = {(room, name): module for room in rooms for module, name in imports[room]}
    importers = collections.defaultdict(set)
    for importer in names - rooms:
        for module, name in imports[importer]:
            importers[homes.get((module, name), module)].add(importer)
    defined, one_statement, words = [], 0, collections.Counter()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            defined.append(node.name)
            one_statement += len(node.body) - (ast.get_docstring(node) is not None) == 1
        words[getattr(node, "id", None) or getattr(node, "attr", None)] += 1
    settings = sum(
        isinstance(line, ast.AnnAssign) and "setting(" in ast.unparse(line)
        for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for line in node.body
    )  # fmt: skip
    tests = sorted((folder / "tests").rglob("*.py"))
    pages = [folder / "README.md", *(folder / "docs").glob("*.md")]
    lines = [len(path.read_text().splitlines()) for path in (folder / PACKAGE).rglob("*.py")]
    return {
        "package: lines · files": f"{sum(lines):,} · {len(lines)}",
        "tests: lines · files": f"{sum(len(p.read_text().splitlines()) for p in tests):,} · {len(tests)}",
        "modules with one importer": f"{sum(len(importers[name]) == 1 for name in names - rooms)}",
        "functions · of one statement · used once": (
            f"{len(defined):,} · {one_statement} · {sum(words[name] == 1 for name in defined)}"
        ),
        "settings": f"{settings}",
        "words of README and docs": f"{sum(len(page.read_text().split()) for page in pages):,}",
    }


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--traced"]:
        del sys.argv[1]
        trace()
        return
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    folder = Path(folders[0] if folders else Path(__file__).parent.parent).resolve()
    table = static_weight(folder)
    if "--no-run" not in sys.argv:
        table["a run: files · functions · room changes"] = run_weight(folder)
    if shutil.which("duplicates"):
        command = ["duplicates", "--repo", str(folder), "--seconds", "120"]
        table["pairs of duplicates"] = subprocess.run(command, capture_output=True, text=True).stdout.split(" ")[0]
    for what, amount in table.items():
        print(f"| {what} | {amount} |")


if __name__ == "__main__":
    main()

"""Write the list of modules in docs/architecture.md anew: each with the first sentence of its docstring."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules -->", "<!-- end of modules -->"


def summary(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def module_list() -> str:
    """All modules below `recbole_unlearn/`, folder by folder."""
    package = ROOT / "recbole_unlearn"
    lines = []
    for folder in sorted({path.parent for path in package.rglob("*.py")}):
        name = folder.relative_to(ROOT).as_posix()
        files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += ["", f"**`{name}/`** {summary(folder / '__init__.py')}", "", "| | |", "|---|---|"]
        lines += [f"| `{path.name}` | {summary(path)} |" for path in files]
    return "\n".join(lines)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{module_list()}\n\n{END}{tail}", encoding="utf-8")

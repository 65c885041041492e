"""The layers of the house: a room imports only from those before it, and no family of methods from another."""

import ast
import sys

import pytest

from tests.conftest import ROOT, run_command

PACKAGE = "recbole_unlearn"
# From the ground up; the longest name that fits a module is its layer. Those of one text may import each other.
LAYERS = (
    "errors", "log text cluster recbole_compat registry", "settings", "files", "patch", "data", "rows",
    "training", "methods.base", "methods.request_losses", "methods", "results.schema", "measures", "results",
    "report", "progress", "pipeline", "quick_start serving", "audit grid judge state stream tuning", "cli",
)  # fmt: skip
RANK = {f"{PACKAGE}.{name}": rank for rank, names in enumerate(LAYERS) for name in names.split()}
FAMILIES = ("methods.obliviate", "methods.sharded")
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))
ENTRY = {PACKAGE, f"{PACKAGE}.__main__"}  # they import on first use


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imports(path):
    """The modules of this package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in NAMES else node.module for name in whole}
    return {name for name in found if name.split(".")[0] == PACKAGE}


def rank(module):
    fits = [name for name in RANK if module == name or module.startswith(f"{name}.")]
    assert fits, f"{module} has no layer: add it to LAYERS where it belongs"
    return RANK[max(fits, key=len)]


def test_rooms_import_only_what_is_below_them():
    for path in MODULES:
        module = name_of(path)
        others = set() if module in ENTRY else imports(path) - {PACKAGE}
        above = {other for other in others if rank(other) > rank(module)}
        assert not above, f"{module} imports {above}, which are above it"
    families = {f"{PACKAGE}.{family}" for family in FAMILIES}
    for path in (ROOT / PACKAGE / "methods").rglob("*.py"):
        others = {family for family in families if not name_of(path).startswith(family)}
        assert not [name for name in imports(path) if name.startswith(tuple(others))], path


def test_modules_need_few_others_and_have_a_layer_and_a_docstring():
    """Only what puts a run, a grid or a sweep together needs many others; how a number is written does not count."""
    modules = [path for path in MODULES if path.name != "__init__.py"]  # a room imports its own files
    many = {name_of(path): len(imports(path) - {PACKAGE, f"{PACKAGE}.text"}) for path in modules}
    assert {name for name, number in many.items() if number > 10} <= ALLOWED_MANY
    assert set(RANK) | ALLOWED_MANY | {f"{PACKAGE}.{family}" for family in FAMILIES} <= NAMES
    assert [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


ALLOWED_MANY = {
    "recbole_unlearn.pipeline", "recbole_unlearn.methods.obliviate.obliviate", "recbole_unlearn.grid.run",
    "recbole_unlearn.tuning.sweep", "recbole_unlearn.state.state", "recbole_unlearn.audit.shadows",
}  # fmt: skip


@pytest.mark.parametrize("module", ["report.comparison", "report.figures", "files.retained_data", "state.receipt"])
def test_a_module_can_be_imported_first(module, tmp_path):
    """Rooms whose names are imported on first use must not lead around in a circle."""
    run_command([sys.executable, "-c", f"import {PACKAGE}.{module}"], tmp_path)

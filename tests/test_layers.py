"""The layers of the house: a room imports only from those before it, and no family of methods from another."""

import ast

import pytest

from tests.conftest import ROOT

PACKAGE = "recbole_unlearn"
# From the ground up; the longest name that fits a module is its layer. Those on one line may import each other.
LAYERS = [
    ["errors"],
    ["inputs", "log", "text", "cluster", "recbole_compat", "registry"],
    ["settings"],
    ["files"],
    ["patch"],
    ["data"],
    ["rows"],
    ["training"],
    ["methods.base"],
    ["methods.request_losses", "methods.window_losses"],
    ["methods"],
    ["results.schema"],
    ["measures"],
    ["results"],
    ["report"],
    ["progress"],
    ["pipeline"],
    ["session", "serving"],
    ["tuning", "grid", "state"],
    ["quick_start"],
    ["cli"],
]
RANK = {f"{PACKAGE}.{name}": rank for rank, names in enumerate(LAYERS) for name in names}
FAMILIES = ("methods.obliviate", "methods.influence", "methods.sharded")
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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_room_imports_only_from_those_before_it(path):
    module = name_of(path)
    if module in ENTRY:
        return
    for other in imports(path) - {PACKAGE}:
        assert rank(other) <= rank(module), f"{module} imports {other}, which is above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_family_of_methods_imports_another(path):
    families = {f"{PACKAGE}.{family}" for family in FAMILIES}
    own = {family for family in families if name_of(path).startswith(family)}
    if name_of(path).startswith(f"{PACKAGE}.methods"):
        assert not [m for m in imports(path) for f in families - own if m.startswith(f)]


def test_modules_stay_small_in_what_they_need():
    """Only the modules that put a run, a grid or a sweep together need many others.

    How a number is written does not count.
    """
    modules = [path for path in MODULES if path.name != "__init__.py"]  # a room imports its own files
    many = {name_of(path): len(imports(path) - {PACKAGE, f"{PACKAGE}.text"}) for path in modules}
    assert {name for name, number in many.items() if number > 10} <= ALLOWED_MANY


ALLOWED_MANY = {
    "recbole_unlearn.pipeline", "recbole_unlearn.methods.obliviate.request", "recbole_unlearn.grid.run",
    "recbole_unlearn.tuning.sweep", "recbole_unlearn.state.state",
}  # fmt: skip


def test_every_module_says_what_it_is_for():
    assert [name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []

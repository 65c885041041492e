"""Directives that fill the pages of `docs/api/` from the package: public names, settings, methods and measures.

Each writes Markdown (with reStructuredText where autodoc needs it) and lets Sphinx parse it.
"""

import importlib
import inspect
import re
import typing
from collections.abc import Iterable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import recbole_unlearn
from recbole_unlearn.measures import measures
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import GROUPS, UnlearnConfig, declared, preset_of


class Written(SphinxDirective):
    """A directive whose content is the Markdown that `text` returns."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        return self.parse_text_to_nodes(self.text(), allow_section_headings=True)

    def text(self) -> str:
        """Markdown."""
        raise NotImplementedError


class PublicNames(Written):
    """All of `recbole_unlearn.__all__`, by autodoc."""

    def text(self) -> str:
        """A section for each name."""
        names = [name for name in recbole_unlearn.__all__ if not name.startswith("__")]
        return "\n\n".join(_described("recbole_unlearn", name) for name in sorted(names, key=_functions_first))


class ReturnedTypes(Written):
    """The classes of this package that public functions return, and that have no public name themselves."""

    def text(self) -> str:
        """A section for each class."""
        public = [getattr(recbole_unlearn, name) for name in recbole_unlearn.__all__]
        returned = [typing.get_type_hints(thing).get("return") for thing in public if inspect.isfunction(thing)]
        own = {
            kind: None
            for kind in returned
            if inspect.isclass(kind) and kind.__module__.startswith("recbole_unlearn") and kind not in public
        }
        return "\n\n".join(_described(kind.__module__, kind.__name__) for kind in own)


class ModuleNames(Written):
    """All public classes and functions that are defined in the module named in the argument, by autodoc."""

    required_arguments, optional_arguments = 1, 0

    def text(self) -> str:
        """A section for each name, in the order of the file."""
        module = importlib.import_module(self.arguments[0])
        own = [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
            and (inspect.isclass(thing) or inspect.isfunction(thing))
        ]  # fmt: skip
        return "\n\n".join(_described(module.__name__, name) for name in own)


class SettingGroups(Written):
    """The settings of a run, a sweep and a grid."""

    def text(self) -> str:
        """A table for each group."""
        config = UnlearnConfig("BPR", "ml-100k")
        return "\n\n".join(
            f"## {title}\n\n{_about(group)}\n\n{_settings(group, config)}" for title, group in GROUPS.items()
        )


class Methods(Written):
    """The unlearning methods of this package."""

    def text(self) -> str:
        """For each method what it does, where its formulas are from, and its settings."""
        config = UnlearnConfig("BPR", "ml-100k")
        blocks = []
        for method in sorted(METHODS.all(), key=lambda method: len(method.mro())):
            values, base = config.method_values(method.name), preset_of(method.name)
            if base is None:
                told = f"{_about(inspect.getmodule(method))}\n\n{_settings(method.Settings, values)}"
            else:
                usual = config.method_values(base)
                other = {key: value for key, value in values.items() if value != usual.get(key)}
                told = f"As `{base}`, with other values:\n\n" + _table(
                    ("setting", "value"), ((f"`{key}`", f"`{value}`") for key, value in other.items())
                )
            blocks.append(f"## {method.name}\n\n{method.help}\n\n{told}")
        return "\n\n".join(blocks)


class Measures(Written):
    """The measures of forgetting, as the report explains them."""

    def text(self) -> str:
        """A table, and what each module says of how it measures."""
        found = measures()
        overview = _table(
            ("key", "title", "what it is", "a good value"),
            ((f"`{m.key}`", m.title.replace("{k}", "K"), m.meaning, m.good) for m in found),
        )
        modules = {m.of.__module__: inspect.getmodule(m.of) for m in found}
        told = [f"## {name.rpartition('.')[2]}\n\n{_about(module)}" for name, module in modules.items()]
        return "\n\n".join(["## In one table", overview, *told])


def _functions_first(name: str) -> tuple[bool, str]:
    return inspect.isclass(getattr(recbole_unlearn, name)), name


def _described(module: str, name: str) -> str:
    thing = getattr(importlib.import_module(module), name)
    kind = "autofunction" if inspect.isfunction(thing) else "autoclass"
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        kind = "autoexception"
    options = "" if kind == "autofunction" else "\n   :members:\n   :exclude-members: from_json, to_json"
    return f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: {module}.{name}{options}\n```"


def _about(thing: Any) -> str:
    """A docstring as Markdown, which ours nearly are: only references to code are written in Sphinx's manner."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)


def _settings(group: type, values: Any) -> str:
    about = declared(group)
    if not about:
        return "It has no settings."
    return _table(
        ("setting", "default", "meaning", "accepts"),
        (
            (f"`{key}`", "" if values[key] is None else f"`{values[key]}`", one.help, _accepts(one))
            for key, one in about.items()
        ),
    )


def _accepts(one: Any) -> str:
    return one.expected().removeprefix("expected ").removeprefix("choose from ")


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _tidy(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    r"""Keep the backslash of D\S in reStructuredText; drop what Python itself writes of a tuple's fields."""
    lines[:] = [line.replace("\\", "\\\\") for line in lines if not line.startswith("Alias for field number")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("returned-types", ReturnedTypes)
    app.add_directive("module-names", ModuleNames)
    app.add_directive("setting-groups", SettingGroups)
    app.add_directive("methods", Methods)
    app.add_directive("measures", Measures)
    app.connect("autodoc-process-docstring", _tidy, priority=100)  # before napoleon escapes
    return {"parallel_read_safe": False}

"""The documentation site builds without a warning, holds what the package declares, and fetches nothing."""

import importlib.util
import re
import sys

import pytest

import recbole_unlearn
from recbole_unlearn.measures import measures
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results import schema
from recbole_unlearn.settings import GROUPS, declared
from tests.conftest import ROOT, run_command

pytestmark = pytest.mark.slow
# A page may link to the web; it may not load anything from there.
FETCHES = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|srcset|href)=["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


HAS_SPHINX = all(importlib.util.find_spec(package) for package in ("sphinx", "myst_parser", "furo"))


@pytest.mark.skipif(not HAS_SPHINX, reason="Sphinx with its theme is not installed")
def test_the_site(tmp_path):
    site = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs")]
    run_command([*command, "-d", str(tmp_path / "work"), str(ROOT), str(site)], tmp_path)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    home = (site / "index.html").read_text()
    for page in pages:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file()
        assert page == pages[0] or page.relative_to(ROOT).with_suffix(".html").as_posix() in home
    looked = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(looked) > 20
    for path in looked:
        assert not FETCHES.search(path.read_text()), path.name

    text = {path.stem: path.read_text() for path in (site / "docs" / "api").glob("*.html")}
    for name in recbole_unlearn.__all__:
        assert name.startswith("__") or f"recbole_unlearn.{name}" in text["python"]
    for group in GROUPS.values():
        assert all(key in text["settings"] for key in declared(group))
    for method in METHODS.all():
        assert f'<section id="{method.name.replace("_", "-")}"' in text["methods"]
        assert all(key in text["methods"] for key in declared(method.Settings))
    assert all(one.key in text["measures"] for one in measures())
    for kind in (schema.RunResult, schema.PhaseResult, schema.Verdict):
        assert kind.__name__ in text["result"]

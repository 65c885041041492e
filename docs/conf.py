"""The documentation site: `python -m sphinx -W -c docs . build/site`, from the top of a checkout, without a network.

The pages are the Markdown files as they are; README is the home page. The pages in `docs/api/` are filled from the
package itself by the directives in `reference.py`, so that a name, a setting or a measure is never described twice.
"""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))  # reference.py
sys.path.insert(0, str(Path(__file__).parents[1]))  # the package of this checkout

from recbole_unlearn import __version__

project = "recbole-unlearn"
author = "the recbole-unlearn authors"
release = version = __version__
project_copyright = "MIT licence"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference"]
root_doc = "README"
include_patterns = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**.md", "examples/**.md",
    "benchmarks/*.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "dist", "saved", "dataset", "**/node_modules"]

myst_enable_extensions = ["tasklist"]
myst_heading_anchors = 4  # links such as measuring.md#the-placebo, as on GitHub
default_role = "code"  # docstrings have `names` in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
highlight_language = "text"
smartquotes = False  # --unlearn is two hyphens

html_theme = "furo"  # its fonts, styles and scripts are part of the package; nothing is fetched
html_title = "recbole-unlearn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False

# The pages in the order of the sidebar. README itself has no such list: GitHub would show it as it is.
NAVIGATION = {
    "Use it": [
        "docs/installation", "docs/requests", "docs/deletion-requests", "docs/supported-models", "docs/serving",
        "docs/many-runs", "docs/troubleshooting", "examples/README",
    ],
    "Judge it": [
        "docs/method", "docs/baselines", "docs/measuring", "docs/judging", "docs/results", "docs/leaderboard",
        "docs/result-json", "docs/guarantees", "docs/glossary",
    ],
    "Look it up": [
        "docs/api/python", "docs/api/settings", "docs/api/methods", "docs/api/measures", "docs/api/result",
    ],
    "Change it": [
        "docs/architecture", "docs/extending", "examples/own_method/README", "CONTRIBUTING", "SECURITY",
        "benchmarks/README", "benchmarks/grid-2026-11-16", "CHANGELOG",
    ],
    "Archive": ["docs/archive/results-2026-11", "docs/archive/tried-2026-11", "docs/archive/weight-2026-11"],
}  # fmt: skip


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the sidebar's list of pages to README, in the site only."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def copy_home(app: Sphinx, error: Exception | None) -> None:
    """A web server, and people, look for index.html."""
    if error is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", copy_home)

"""Settings of the site, for Sphinx; ``.ci/make_site.py`` builds it."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "fila-cluster"
root_doc = "index"
extensions = ["myst_parser"]
exclude_patterns = [".read"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
suppress_warnings = [
    "misc.highlighting_failure",  # output with "…" in it is no JSON, and is shown as it is
    "myst.header",  # the decisions of a page are headings of the third level
]
html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"turns-0": "#b04c12", "turns-1": "#1f68bd", "turns-2": "#1f7a43"},
    "dark_css_variables": {"turns-0": "#f0954f", "turns-1": "#6aabf0", "turns-2": "#58c687"},
}
html_title = "fila-cluster"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_js_files = [("turns.js", {"defer": "defer"}), ("keyboard.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "github-dark"


def with_levels(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Give the captions of the navigation a level: Sphinx calls them headings, and for who hears a page that is not enough."""
    captions = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = captions.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> None:
    """Have the navigation changed after the theme has made it."""
    app.connect("html-page-context", with_levels, priority=900)

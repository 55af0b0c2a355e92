"""Settings of the site, for Sphinx; ``.ci/make_site.py`` builds it."""

from pathlib import Path

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
html_title = "fila-cluster"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_js_files = [("turns.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

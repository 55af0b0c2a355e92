"""What axe-core finds wrong with a page for people who see, hear or point less well."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

GRAVE = {"serious", "critical"}
FLAT = ".q-btn__content { z-index: auto !important }"
"""axe takes a button's text, which has a z-index, to be below its button. Without it the text looks the same."""
DRAWN = "new Promise(then => requestAnimationFrame(() => requestAnimationFrame(then)))"
"""A page hears of other colours when it is drawn next."""
STILL = "!document.getAnimations().some(each => each instanceof CSSTransition)"
"""A colour that is on its way to another one has no contrast yet."""


def grave_findings(page: Page) -> list[str]:
    """Return what keeps somebody from the page's content, in light and in dark colours: the rule, the place, and what is wrong."""
    page.add_style_tag(content=FLAT)
    found = []
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours, reduced_motion="reduce")
        page.evaluate(DRAWN)
        page.wait_for_function(STILL)
        for rule in Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]:
            if rule["impact"] in GRAVE:
                found += [f"{colours}: {rule['id']}: {node['target']}: {node['failureSummary']}" for node in rule["nodes"]]
    return found

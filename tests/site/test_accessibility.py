"""axe finds nothing grave on any kind of page of the site, wide and narrow, light and dark."""

import pytest
from playwright.sync_api import Browser, expect

from tests.support.accessibility import grave_findings

KINDS = {
    "index": "the start page",
    "tutorial/2-two-tenants": "code and its output",
    "fairness": "a picture to play with",
    "why": "wide tables",
    "http": "made from code",
    "decisions/client": "below another page",
    "project/ARCHITECTURE": "from outside the docs",
    "search": "a form",
    "genindex": "the theme's own",
}


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_page(browser: Browser, address: str, kind: str, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        page = context.new_page()
        page.goto(f"{address}/{kind}.html")
        assert grave_findings(page) == []


def test_what_a_search_finds(browser: Browser, address: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{address}/search.html?q=fairness")
        expect(page.locator("#search-results a").first).to_be_visible()
        assert grave_findings(page) == []

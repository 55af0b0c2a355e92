"""The site in Chromium: each page, wide and narrow, light and dark, without an error; the search; the picture to play with."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

WORDS = {
    "fairness": "fairness",
    "visibility": "client",
    "redrive": "cli",
    "concurrency": "handlers",
    "backoff": "handlers",
    "quarantined": "operating",
    "partitions": "large-queues",
    "Prometheus": "metrics",
    "Temporal": "compare",
    "outbox": "outbox",
}
"""Words to search for, and a page that is found."""


def watched(page: Page) -> list[str]:
    """Return the list of what goes wrong on a page from now on."""
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"{page.url}: {error}"))
    page.on("console", lambda said: trouble.append(f"{page.url}: {said.text}") if said.type in {"error", "warning"} else None)
    page.on("request", lambda asked: trouble.append(asked.url) if "//127.0.0.1:" not in asked.url else None)
    return trouble


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_opens(browser: Browser, site: Path, address: str, width: int, colours: Literal["light", "dark"]) -> None:
    with browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=colours, reduced_motion="reduce"
    ) as context:
        page = context.new_page()
        trouble = watched(page)
        grounds = set()
        for file in sorted(site.rglob("*.html")):
            page.goto(f"{address}/{file.relative_to(site)}")
            wide, ground = page.evaluate(
                "[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
            )
            assert wide <= width, f"{page.url} is {wide} wide"
            grounds.add(ground)
        assert trouble == []
        assert len(grounds) == 1
        assert (grounds == {"rgb(255, 255, 255)"}) == (colours == "light")


def test_the_search_finds_words(browser: Browser, address: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        trouble = watched(page)
        for word, found in WORDS.items():
            page.goto(f"{address}/index.html")
            page.get_by_role("textbox", name="Search").first.fill(word)
            page.keyboard.press("Enter")
            expect(page.locator(f"#search-results a[href*='{found}.html']").first).to_be_visible()
        assert trouble == []


def test_the_picture_of_turns_can_be_played_with(browser: Browser, address: str) -> None:
    with browser.new_context(reduced_motion="reduce") as context:
        page = context.new_page()
        trouble = watched(page)
        page.clock.install(time=0)
        page.goto(f"{address}/fairness.html")
        page.clock.pause_at(3_600_000)
        page.get_by_role("button", name="play").click()
        page.clock.run_for(2_500)
        served = page.get_by_test_id("served").locator("i")
        expect(served).to_have_count(6)
        shown = [box.get_attribute("class") for box in reversed(served.all())]
        assert shown[:4] == ["turns-0", "turns-1", "turns-2", "turns-0"], "one each, then the first again"
        page.get_by_role("slider", name="weight of globex").fill("5")
        page.clock.run_for(4_900)
        assert sum(box.get_attribute("class") == "turns-0" for box in served.all()[:12]) == 10
        assert trouble == []

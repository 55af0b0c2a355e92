"""One browser and one cluster with a dashboard for all tests; each test has a page and queues of its own."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from fila_cluster import Client
from fila_cluster.ops.dashboard.shell.live import WAIT_S_MAX
from tests.support import machine
from tests.support.cluster.cluster import Cluster, running

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess",
)  # fmt: skip
"""It may run as root in a container, and must ask nothing of the network outside. Without the features each page would start two more
processes: one for suggestions below an address bar that no one sees, and one in advance."""

PATIENCE_MS = 1000 * (WAIT_S_MAX + 30)
"""A busy machine is slow, and a page asks the less often the slower its answers are; one that is right is right at once in the end."""

HIDE_UNTIL_CONNECTED = """
addEventListener('DOMContentLoaded', () => {
  if (location.pathname === '/login') return;
  document.documentElement.style.visibility = 'hidden';
  const look = setInterval(() => {
    if (window.did_handshake) {
      clearInterval(look);
      document.documentElement.style.visibility = '';
    }
  }, 5);
});
"""
"""A page can be seen before its server hears of clicks: until then they are lost. Playwright clicks on nothing that is hidden. The login has no server beside it."""

BREAKER = "[lua]\ncircuit_breaker_cooldown_ms = 3600000\n"
"""A breaker that opened is still open when a test reads it, however late."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium without a window. It ends with these tests: Playwright keeps an event loop running, where no other could be started."""
    machine.require(machine.BROWSER)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=machine.browser(), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def observed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers and a dashboard, for all tests that leave the processes alone."""
    directory = tmp_path_factory.mktemp("observed")
    (directory / "fila.toml").write_text(BREAKER)
    with running(directory / "data", "--dashboard", "127.0.0.1:0", workers=2, cwd=directory) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _log(observed_cluster: Cluster) -> Iterator[None]:
    """Show what the processes logged during a test that fails."""
    before = len(observed_cluster.log)
    yield
    print(*observed_cluster.log[before:], sep="\n")


@pytest.fixture(scope="session")
def dashboard(observed_cluster: Cluster) -> str:
    """Its address, without a slash at the end."""
    return address_of(observed_cluster)


def address_of(cluster: Cluster) -> str:
    """Where a cluster's dashboard is, as its ready line says."""
    return cluster.ready_line.split("dashboard ")[1].split(" ")[0]


@pytest.fixture
def client(observed_cluster: Cluster) -> Iterator[Client]:
    """A client of the observed cluster: the ``queue`` fixture makes its queues there."""
    with observed_cluster.client() as client:
        yield client


def patient(context: BrowserContext) -> BrowserContext:
    """Let it wait for a busy machine."""
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(HIDE_UNTIL_CONNECTED)
    return context


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page. A test fails if it met an error, or asked any other host for anything."""
    context = patient(browser.new_context(viewport={"width": 1400, "height": 900}))
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("request", lambda request: trouble.append(f"outside: {request.url}") if _is_outside(request.url) else None)
    yield page
    context.close()
    assert trouble == []


def _is_outside(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))

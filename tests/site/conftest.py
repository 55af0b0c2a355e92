"""The built site, once for all tests of this folder."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest

from tests.architecture.sources import ROOT
from tests.browser.conftest import browser
from tests.support.machine import leave_out

assert browser  # a fixture


def build(root: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    """Build the site of a repository."""
    return subprocess.run(
        [sys.executable, str(root / ".ci/make_site.py"), str(target)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    if missing := [name for name in ("sphinx", "furo", "myst_parser") if find_spec(name) is None]:
        leave_out(
            "without the extra site there is no site", f"there is no {', '.join(missing)}: pip install 'fila-cluster[site]'"
        )


@pytest.fixture(scope="session")
def site(_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    target = tmp_path_factory.mktemp("site") / "built"
    done = build(ROOT, target)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return target


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()

"""``python -m tests.browser.pictures.hosts DIRECTORY``: takes the picture of the page Hosts for ``docs/images``: one host of three was killed."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from fila_cluster import Message
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.browser.conftest import FLAGS, patient
from tests.support import machine
from tests.support.cluster.cluster import eventually
from tests.support.hosts.nodes import cluster_of_nodes


def main() -> None:
    """Take it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    with Ports() as ports:
        address = ports.reserve(Address("127.0.0.1", 0), "dashboard")
    shown = {"a": {"FILA_DASHBOARD__ENABLED": "true", "FILA_DASHBOARD__LISTEN_ADDR": str(address)}}
    with (
        tempfile.TemporaryDirectory() as home,
        cluster_of_nodes(Path(home), env=shown) as nodes,
        sync_playwright() as playwright,
    ):
        with nodes.client() as client:
            for queue in ("orders", "emails", "webhooks", "refunds"):
                client.create_queue(queue)
                client.enqueue_many(queue, [Message(b"{}", fairness_key=f"tenant-{number % 3}") for number in range(500)])
        size: Any = {"width": 1400, "height": 1000}
        browser = playwright.chromium.launch(executable_path=machine.browser(), args=list(FLAGS))
        page = patient(browser.new_context(viewport=size)).new_page()
        page.goto(f"http://{address}/hosts")
        page.get_by_test_id("host-a").wait_for()
        page.wait_for_timeout(3000)
        nodes.nodes[2].kill()
        eventually(lambda: all(not name.startswith("c/") for name in nodes.leaders().values()), "it leads nothing", 60)
        page.wait_for_timeout(5000)  # the page asks every other second; the others take over after six
        page.screenshot(path=directory / "dashboard-hosts-one-away.png")
        browser.close()


if __name__ == "__main__":
    main()

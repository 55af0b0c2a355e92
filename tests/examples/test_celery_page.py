"""The blocks of ``docs/celery.md`` run, one after the other, and its test passes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import pools

import fila_cluster.testing.kit  # before pytest runs within pytest, which forgets what it imports
from tests.support.cluster.cluster import Cluster
from tests.support.external.celery import broker_url
from tests.support.kit import PLUGIN

pytest_plugins = "pytester"
assert fila_cluster.testing.kit

PAGE = Path(__file__).parents[2] / "docs/celery.md"
ADDRESS = "fila://127.0.0.1:5555"
FOUND = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
TESTS = [block for block in FOUND if "\ndef test_" in block]
BLOCKS = [block for block in FOUND if block not in TESTS]


@pytest.fixture
def names(shared_cluster: Cluster) -> Iterator[dict[str, Any]]:
    """What the blocks have defined."""
    assert sum(block.count(ADDRESS) for block in BLOCKS) == 1
    names: dict[str, Any] = {"__name__": "shop"}
    for block in BLOCKS:
        exec(block.replace(ADDRESS, broker_url(shared_cluster, "page")), names)
    yield names
    names["app"].close()
    pools.reset()


def test_the_page(names: dict[str, Any], shared_cluster: Cluster) -> None:
    app, invoice = names["app"], names["invoice"]
    invoice.delay("bolt", 8)
    with shared_cluster.client() as client:
        by_header, by_function = sorted(client.browse("page/celery"), key=lambda view: view.id)
        assert (by_header.fairness_key, by_header.throttle_keys, by_header.cost) == ("acme", ["mail", "tenant:acme"], 2)
        assert (by_function.fairness_key, by_function.throttle_keys) == ("bolt", ["mail"])
        assert client.purge_queue("page/celery") == 2
    assert app.conf.broker_transport_options["max_attempts"] == 5


def test_the_test_on_the_page_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_page="\n\n".join([BLOCKS[0], *TESTS]))
    pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", "-W", "error").assert_outcomes(passed=len(TESTS))

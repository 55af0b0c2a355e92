"""What the pages on migrations show as *after* runs here; what they show as *before* is Python."""

import re
import sys
from types import ModuleType
from typing import Any

import dramatiq
import pytest
from kombu import pools

from tests.examples.documents import DOCS, blocks
from tests.support.cluster.cluster import Cluster
from tests.support.external.celery import broker_url

PAGES = sorted(page.name for page in (DOCS / "migrate").glob("*.md"))
ADDRESS = "fila://127.0.0.1:5555"


def after(page: str) -> list[str]:
    """Return the programs of a page but the first, which is what was before."""
    first, *others = (block.text for block in blocks(f"migrate/{page}") if block.language == "python")
    assert first.startswith("# Before: ")
    assert others
    return others


@pytest.fixture
def names(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What programs define, in a module as those of a user: clients find the shared cluster."""
    monkeypatch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    return vars(module)


@pytest.mark.parametrize("page", PAGES)
def test_every_program_is_python_and_every_page_says_what_changes(page: str) -> None:
    text = (DOCS / "migrate" / page).read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[:3] == ["Before", "After", "What changes"]
    for block in blocks(f"migrate/{page}"):
        if block.language == "python":
            compile(block.text, page, "exec")


def test_celery(names: dict[str, Any], shared_cluster: Cluster) -> None:
    [program] = after("celery.md")
    assert program.count(ADDRESS) == 1
    exec(program.replace(ADDRESS, broker_url(shared_cluster, "moved")), names)
    with shared_cluster.client() as client:
        [task] = client.browse("moved/celery")
        assert (task.fairness_key, task.throttle_keys) == ("acme", ["reports"])
    names["app"].close()
    pools.reset()


def test_rq(names: dict[str, Any], shared_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for program in after("rq.md"):
        exec(program, names)
    with shared_cluster.client() as client:
        assert names["app"].run_until_idle(client) == 1
        client.delete_queue("mails")
    assert "to ana@example.org: Hello" in capsys.readouterr().out


def test_dramatiq(names: dict[str, Any], shared_cluster: Cluster) -> None:
    earlier = dramatiq.broker.global_broker
    try:
        [program] = after("dramatiq.md")
        exec(program, names)
        with shared_cluster.client() as client:
            [message] = client.browse("default")
            assert (message.fairness_key, message.throttle_keys) == ("acme", ["provider"])
        names["broker"].close()
    finally:
        dramatiq.broker.global_broker = earlier


def test_sqs(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    [program] = after("sqs.md")
    exec(program, names)
    assert capsys.readouterr().out == "one book\n"

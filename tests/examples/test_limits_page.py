"""The recipes on the page about limits run, one after another, and the limits hold."""

import re
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fila_cluster import Client, Delivery
from tests.support.cluster.cluster import Cluster, eventually

PAGE = Path(__file__).parents[2] / "docs/limits.md"
RECIPE = re.compile(r"^### (.*?)\n.*?^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
START = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class Recipes:
    """The recipes, by what is in their titles. The names of all of them are in one module."""

    def __init__(self) -> None:
        text = PAGE.read_text(encoding="utf-8")
        start = START.search(text)
        assert start is not None
        self._recipes = dict(RECIPE.findall(text.partition("## Recipes")[2].partition("## Setting")[0]))
        self._module: dict[str, Any] = {"__name__": "limits"}
        self._run(start[1])
        self.client: Client = self._module["client"]

    def run(self, about: str) -> None:
        """Run one of them."""
        (title,) = [title for title in self._recipes if about in title]
        self._run(self._recipes.pop(title))

    def over(self) -> None:
        """Check that all of them ran."""
        assert not self._recipes

    def _run(self, block: str) -> None:
        exec(compile(block, str(PAGE), "exec"), self._module)


def held(client: Client, queues: list[str], enough: int) -> list[Delivery]:
    """What may be leased of some queues at a time: at least ``enough``, and nothing for a while after that."""
    found: list[Delivery] = []
    while got := client.receive_any(dict.fromkeys(queues, 100), wait=30.0 if len(found) < enough else 0.3):
        found += got
    return found


def test_the_recipes(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
    recipes = Recipes()
    client = recipes.client
    with ExitStack() as stack:
        stack.callback(client.close)
        for key in ("tenant:*", "tenant:acme", "database", "database:nightly", "llm", "mailer"):
            stack.callback(client.delete_throttle, key)

        recipes.run("for each tenant")
        reports = held(client, ["reports"], 25)
        assert Counter(each.fairness_key for each in reports) == {"acme": 20, "globex": 5}

        recipes.run("over three queues")
        queues = ["orders", "invoices", "statistics"]
        calls = held(client, queues, 50)
        assert len(calls) == 50
        assert client.list_throttles("database")[0].in_use == 50

        recipes.run("nightly job")
        client.ack(calls)
        nightly = held(client, ["nightly"], 25)
        assert len(nightly) == 25
        others = held(client, queues, 25)
        assert len(others) == 25
        client.ack([*reports, *nightly, *others])

        before_s = time.monotonic()
        recipes.run("language model")
        client.enqueue("prompts", b"more", throttle_keys=["llm"], cost=4_000)
        client.ack(client.receive("prompts", wait=30))
        assert time.monotonic() - before_s >= 1.5  # 4,000 + 1,000 a second ≥ 1,500 + 4,000; by the estimate it were 0.8 s

        recipes.run("answers 429")
        eventually(lambda: learned(client), "the rate falls")
    recipes.over()


def learned(client: Client) -> bool:
    """Whether the rate has fallen by the deferral, as of the next delivery; it is given back, so that there is another one."""
    for delivery in client.receive("mail", wait=5):
        delivery.retry()
    (mailer,) = client.list_throttles("mailer")
    assert mailer.rate == 100
    assert mailer.rate_in_force is not None
    return 5 <= mailer.rate_in_force < 100

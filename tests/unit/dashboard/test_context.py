"""What the pages of a visitor with few permissions are made of."""

import asyncio
import math
from typing import Any

import pytest

from fila_admission.permissions import ADMIN, CONSUME, EVERYTHING, PRODUCE, Permissions
from fila_cluster.errors import UnauthenticatedError
from fila_cluster.ops.analysis.history import History
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.analysis.watch import Watch
from fila_cluster.ops.dashboard.shell import context as shell
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import NAVIGATION, may_open
from fila_proto_zmq.commands import Metrics
from tests.unit.analysis.looks import hosts, leads
from tests.unit.observer.told import cluster, queue


class Key:
    """A key that somebody is logged in with."""

    def __init__(self, *allow: str) -> None:
        self.name, self.permissions, self.ended = "shop", Permissions(allow), False
        self.client: Any = None


async def _told() -> Metrics:
    return cluster(queue("orders"), queue("secret"))


def seen_by(key: Key | None) -> Context:
    watch, history = Watch(_told), History()
    asyncio.run(watch.look())
    history.record(1.0, watch.latest)
    return Context(watch, history, None, "tcp://here", key)  # type: ignore[arg-type]


def test_without_authentication_everybody_may_do_everything() -> None:
    context = seen_by(None)
    assert context.may(ADMIN, EVERYTHING)
    assert context.may_some(PRODUCE)
    assert all(may_open(context, place) for place in NAVIGATION if not place.of_hosts)
    assert context.latest is not None


def test_a_key_sees_its_queues_alone_and_nothing_once_it_has_ended() -> None:
    key = Key("consume:orders*")
    context = seen_by(key)
    assert context.latest is not None
    assert [each.info.name for each in all_queues(context.latest)] == ["orders"]
    assert [row.name for row in asyncio.run(context.queue_rows())] == ["orders"]
    assert {concern.queue for concern in context.concerns()} <= {"orders", None}
    assert context.series_of("orders")
    assert not context.series_of("secret")
    assert asyncio.run(context.series_of_all())[1]["pending"] == context.series_of("orders")["pending"]
    key.ended = True
    assert context.latest is None
    assert context.concerns() == []
    assert asyncio.run(context.queue_rows()) == []


def test_sums_over_no_queue_have_no_numbers() -> None:
    times, sums = asyncio.run(seen_by(Key("consume:other")).series_of_all())
    assert len(times) == len(sums["pending"]) == 1
    assert all(math.isnan(number) for numbers in sums.values() for number in numbers)


@pytest.mark.parametrize(
    ("allow", "paths"),
    [
        (["consume:a"], {"/", "/queues", "/messages", "/dead-letters", "/schedules", "/hooks", "/why"}),
        (["produce:*"], {"/", "/queues", "/schedules", "/hooks", "/why"}),
        (["admin:a*"], {"/", "/queues", "/schedules", "/hooks", "/why"}),
        (
            ["admin:*"],
            {"/", "/queues", "/templates", "/schedules", "/hooks", "/why", "/limits", "/config", "/connections", "/audit"},
        ),
    ],
)
def test_the_navigation_has_what_a_key_may_open(allow: list[str], paths: set[str]) -> None:
    context = seen_by(Key(*allow))
    assert {place.path for place in NAVIGATION if may_open(context, place)} == paths
    assert context.sees_all is any(text.endswith(":*") for text in allow)
    assert context.may(CONSUME, "a") is (allow == ["consume:a"])


@pytest.mark.parametrize(("told", "is_there"), [(cluster(), False), (hosts(1, a=[leads(0)]), True)])
def test_the_page_of_hosts_is_in_the_navigation_of_a_cluster_that_has_some(told: Metrics, is_there: bool) -> None:
    async def ask() -> Metrics:
        return told

    watch = Watch(ask)
    asyncio.run(watch.look())
    for key in (None, Key("consume:orders")):
        context = Context(watch, History(), None, "tcp://here", key)  # type: ignore[arg-type]
        assert ("/hosts" in {place.path for place in NAVIGATION if may_open(context, place)}) is is_there


def test_a_visitor_without_a_key_gets_nothing_where_keys_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "visitor_of_page", lambda: None)
    with pytest.raises(UnauthenticatedError):
        Visits(Watch(_told), History(), "tcp://here", None).context()

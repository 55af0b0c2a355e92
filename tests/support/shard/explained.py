"""Ask a shard why something waits, and hold its answer against what the catalogue of reasons promises."""

from collections.abc import Sequence
from typing import Any

from fila_proto_zmq.commands import Browse, Browsed, Explain, Explained
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.reasons import MEANINGS, ReasonCode
from fila_proto_zmq.record import record_id
from fila_worker.core.effects import ClientCall
from fila_worker.core.explain.explain import explain
from fila_worker.core.inspect.browse import browse
from tests.support.shard.shard import ADMIN, ShardHarness, finished

GROUPED = {"keys", "messages", "fairness_key"}
"""Details of reasons that hold for some keys of a queue."""


def why(shard: ShardHarness, message: str | None = None, *, key: str | None = None, queue: str = "q") -> Explained:
    """The explanation. A second question has the same answer, because a question changes nothing."""
    command = Explain(None if message is None else parse_id(message), key)
    first, second = (shard.ask(command, queue, ADMIN) for _ in range(2))
    assert isinstance(first, Explained)
    assert first == second
    check(first)
    return first


def text_of(shard: ShardHarness, *arguments: str, **options: str) -> str:
    """The first reason in words."""
    return why(shard, *arguments, **options).reasons[0].text


def why_now(shard: ShardHarness, message: str | None = None) -> Explained:
    """Why, before the turn that would change it."""
    return finished(
        explain(shard.shard, ClientCall(ADMIN, 0, "q", shard.now_ms), Explain(None if message is None else parse_id(message)))
    )


def starve(shard: ShardHarness) -> None:
    """Let so much time pass that no client counts as a consumer any more."""
    shard.pass_time(60_000)


def ids(shard: ShardHarness, *, turn: bool = True) -> list[str]:
    """Of the messages that are left, in line order."""
    page = (
        shard.ask(Browse(1000), "q", ADMIN)
        if turn
        else finished(browse(shard.shard, ClientCall(ADMIN, 0, "q", shard.now_ms), Browse(1000)))
    )
    assert isinstance(page, Browsed)
    return [format_id(*record_id(each.record)) for each in page.messages]


def check(explained: Explained) -> None:
    """There is a reason, and the catalogue has each code and its details."""
    assert explained.reasons
    for each in explained.reasons:
        assert each.code in set(ReasonCode)
        unknown = {name for name in each.details if f"`{name}`" not in _details(ReasonCode(each.code), each.details)}
        assert unknown <= GROUPED, f"{each.code} has details {unknown} that reasons.py does not name"


def _details(code: ReasonCode, details: dict[str, Any]) -> str:
    """Return what is said of a reason's details, with those of the reasons that it refers to."""
    also = {ReasonCode.EXPIRED: [ReasonCode.DEAD_LETTERED]}.get(code, [])
    if details.get("waits_for") == "tokens":
        also = [*also, ReasonCode.THROTTLED, ReasonCode.PARKED]
    return " ".join(MEANINGS[each].details for each in [code, *also])


def codes(explained: Explained) -> list[str]:
    """Of the reasons, in order."""
    return [each.code for each in explained.reasons]


def first(explained: Explained, code: str) -> dict[str, Any]:
    """The numbers of the first reason, which is this one."""
    assert explained.reasons[0].code == code, [(each.code, each.text) for each in explained.reasons]
    return explained.reasons[0].details


def these(details: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """Some of the numbers."""
    return [details[name] for name in names]

"""Asking a shard why something waits, and what the page of reasons says of the answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fila_proto_zmq.commands import Explain, Explained
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.reasons import ReasonCode
from tests.support.shard import ADMIN, ShardHarness

PAGE = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
_CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
ROWS = {code.strip("`"): rest for code, *rest in _CELLS}
"""What the page says of each code: what it means, until when, its details."""

GROUPED = {"keys", "messages", "fairness_key"}
"""Details of reasons that hold for some keys of a queue."""


def why(shard: ShardHarness, message: str | None = None, *, key: str | None = None, queue: str = "q") -> Explained:
    """The explanation. Asked twice it says the same, because it changes nothing; it says nothing that the page has not."""
    command = Explain(None if message is None else parse_id(message), key)
    first, second = (shard.ask(command, queue, ADMIN) for _ in range(2))
    assert isinstance(first, Explained)
    assert first == second
    check(first)
    return first


def check(explained: Explained) -> None:
    """Every code, and every detail of it, is on the page; there is always a reason, and times are in no past."""
    assert explained.reasons
    for each in explained.reasons:
        assert each.code in set(ReasonCode)
        unknown = {name for name in each.details if f"`{name}`" not in _details(each.code, each.details)}
        assert unknown <= GROUPED, f"{each.code} has details {unknown} that docs/why.md lacks"


def _details(code: str, details: dict[str, Any]) -> str:
    """What the page has of a reason's details, with those of the one that it refers to."""
    text = ROWS[code][2]
    if code == "expired":
        text += ROWS["dead_lettered"][2]
    return text + (ROWS["throttled"][2] + ROWS["parked"][2] if details.get("waits_for") == "tokens" else "")


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

"""Numbers for people."""

import pytest

from fila_worker.core.explain.text import counted, holder, span
from fila_worker.core.model.consumers import Consumer
from fila_worker.core.model.leases import Reservation


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0.0 s"), (0, "0.0 s"), (200, "0.2 s"), (119_900, "119.9 s"), (120_000, "2.0 min"), (7_199_000, "120.0 min"),
        (7_200_000, "2.0 h"), (172_800_000, "2.0 days"),
    ],
)  # fmt: skip
def test_spans(milliseconds: int, text: str) -> None:
    assert span(milliseconds) == text


def test_counts() -> None:
    assert [counted(number, "message") for number in (0, 1, 2, 12_345)] == [
        "0 messages", "1 message", "2 messages", "12,345 messages",
    ]  # fmt: skip


def test_holders() -> None:
    assert holder(Consumer(b"\x01\xff", 0)) == "client 3d773946"
    assert holder(Reservation(3, "batch-7")) == "reservation 'batch-7'"

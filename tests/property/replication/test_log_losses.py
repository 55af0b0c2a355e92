"""What a log has lost, all who read it notice, as soon as a later record is there."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_worker.log.records import LogRecord, RecordKind, decode, encode
from fila_worker.log.rule import LostError, Rule, Writer

RECORD_BYTES_MAX = 64
EPOCHS = st.lists(st.lists(st.integers(0, 150), min_size=1, max_size=4), min_size=1, max_size=5)
"""For each writer the sizes of its batches."""


def written(epochs: list[list[int]]) -> list[bytes]:
    """The log of writers that append one after the other."""
    log: list[bytes] = []
    rule = Rule()
    for sizes in epochs:
        log.append(encode(LogRecord(RecordKind.MARKER, 0, 0)))
        read(rule, log, range(rule.next_offset, len(log)))
        writer = Writer(rule.position, RECORD_BYTES_MAX)
        for size in sizes:
            log += writer.batch(b"x" * size + b"|")
        read(rule, log, range(rule.next_offset, len(log)))
    return log


def read(rule: Rule, log: list[bytes], offsets: Iterable[int]) -> None:
    for offset in offsets:
        rule.read(offset, decode(log[offset], offset))


@given(EPOCHS, st.data())
def test_a_hole_is_noticed(epochs: list[list[int]], data: st.DataObject) -> None:
    """The last record stays, and records keep their offsets."""
    log = written(epochs)
    begin = data.draw(st.integers(0, len(log) - 2))
    end = data.draw(st.integers(begin + 1, len(log) - 1))
    with pytest.raises(LostError, match="the log has lost records"):
        read(Rule(), log, [*range(begin), *range(end, len(log))])

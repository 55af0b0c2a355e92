"""What a host that has not joined yet reads in the control partition."""

from itertools import count

import pytest

from fila_worker.log.bodies import Node, NodeState, encode_body
from fila_worker.log.placement.control import LAST_RECORDS, find_keys
from tests.support.memory_log import MemoryLog, MemoryPartition


def found(log: MemoryLog) -> str:
    pauses = count(1)

    def pause() -> None:
        if next(pauses) > 3:
            raise TimeoutError

    return find_keys(MemoryPartition(log, lambda: 0), pause)


def say(log: MemoryLog, keys: str) -> None:
    log.put(encode_body(NodeState(Node("a/worker-0"), keys=keys)))


def test_nobody_has_said_anything() -> None:
    assert found(MemoryLog()) == ""


def test_the_last_keys_count_and_what_says_none_does_not() -> None:
    log = MemoryLog()
    for keys in ("k1", "k2", ""):
        say(log, keys)
    log.put(b"damaged")
    assert found(log) == "k2"


def test_only_the_end_of_a_long_partition_is_read() -> None:
    log = MemoryLog()
    for number in range(LAST_RECORDS + 2):
        say(log, "" if number else "k1")
    assert found(log) == ""
    say(log, "k2")
    assert found(log) == "k2"


def test_the_partition_may_be_trimmed() -> None:
    log = MemoryLog()
    for _ in range(20):
        say(log, "k1")
    log.trim(15)
    assert found(log) == "k1"


def test_a_partition_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    log = MemoryLog()
    say(log, "k1")
    log.reachable = False
    with pytest.raises(TimeoutError):
        found(log)

"""What was said last in the control partition, for a host that has not joined yet: whose log it is."""

from collections.abc import Callable
from typing import Final

from fila_worker.log.bodies import NodeState, decode_body
from fila_worker.log.partition import Partition, Tail, TrimmedError

LAST_RECORDS: Final = 1000
"""How many records are read. Each node says it once a second, so one of them is enough, unless all are of an earlier release."""
READ_MAX: Final = 100


def find_keys(partition: Partition, pause: Callable[[], None]) -> str:
    """Return the fingerprint of the keys that the last node has said; empty: none has.

    ``pause``: called before each look at whether the partition has answered. It raises when that takes too long.
    """
    finder = partition.tail(0)
    try:
        while (end := finder.end) is None:
            finder.ask()  # again, if the last question came to nothing: the topic may be new
            pause()
    finally:
        finder.close()
    try:
        return _read(partition.tail(max(0, end - LAST_RECORDS)), max(0, end - LAST_RECORDS), end, pause)
    except TrimmedError as error:
        begin = int(error.details["begin"])
        return _read(partition.tail(begin), begin, end, pause)


def _read(tail: Tail, offset: int, end: int, pause: Callable[[], None]) -> str:
    found = ""
    try:
        while offset < end:
            entries = tail.read(READ_MAX)
            for entry in entries:
                state = decode_body(entry.data, NodeState)
                found = (state.keys if state is not None else "") or found
                offset = entry.offset + 1
            if not entries:
                pause()
    finally:
        tail.close()
    return found

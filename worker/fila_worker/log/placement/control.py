"""The control partition of the log: each node appends its state, and reads the states of the others.

A reader begins at the end of the partition: all live nodes append once a second, and older states do not show who lives. No
call here fails: after an error the reader begins again, and :meth:`ControlPartition.is_complete` is False until it has read
for long enough.

:func:`find_keys` reads it for a host that has not joined yet.
"""

from collections.abc import Callable
from typing import Final

from fila_proto_zmq.errors import StorageError
from fila_worker.log.bodies import Node, NodeState, decode_body, encode_body
from fila_worker.log.partition import Partition, Tail, TrimmedError
from fila_worker.log.placement.views import NodeView, NodeViews, PlacementLimits


class ControlPartition:
    """One node's access to it. Call :meth:`append` and :meth:`read` some times a second."""

    def __init__(self, partition: Partition, now_ms: int, limits: PlacementLimits, node: Node) -> None:
        self._partition, self._limits, self._node = partition, limits, node
        self._views = NodeViews(limits)
        # the own state
        self._appender = partition.appender()
        self._reported = True
        """Whether the last append has its outcome: there is one at a time."""
        self._states: NodeState | None = None
        self._appended_ms = now_ms
        # the states of the others
        self._finder: Tail | None = None
        """It looks for the end of the partition, where the reader is to begin."""
        self._tail: Tail | None = None
        self._next_offset = 0
        self._since_ms: int | None = None
        """Since when it reads, and the partition answers; None: it does not answer."""
        self._asked_ms = self._answered_ms = self._read_ms = now_ms
        self._trimmed_ms = now_ms
        # whether its name is its own
        self.twin: Node | None = None
        """Another process that had this node's name when this one began to read, and still appends. The owner has to end."""
        self.named = False
        """Whether it has read for long enough without its own name: a later process with that name has to end."""
        self._doubted_ms: int | None = None
        """When it first read its own name. Once is not enough: an earlier process of this node may have written it."""

    def append(self, state: NodeState, now_ms: int) -> None:
        """Say what this node has, if it is time to: once a second, and when something other than its delay has changed."""
        for report in self._appender.reports():
            self._reported = True
            if report.error:
                self._appender.close()
                self._appender = self._partition.appender()
        last = self._states
        same = last is not None and _without_delays(last) == _without_delays(state)
        if self._reported and not (same and now_ms - self._appended_ms < self._limits.append_ms):
            self._states, self._appended_ms, self._reported = state, now_ms, False
            self._appender.append(encode_body(state))

    def read(self, now_ms: int) -> None:
        """Read the states of the others."""
        gap_ms, self._read_ms = now_ms - self._read_ms, now_ms
        if gap_ms > self._limits.answer_ms_max:  # this process did not run, and what waits in the reader is old
            self._begin_again()
        try:
            if self._tail is None:
                self._find_the_end(now_ms)
            else:
                self._read(self._tail, now_ms)
        except StorageError:  # trimmed, gone back, or refused
            self._begin_again()

    def _find_the_end(self, now_ms: int) -> None:
        if self._finder is None:
            self._finder = self._partition.tail(0)
        elif (end := self._finder.end) is not None and self._finder.asked_ms is not None:
            self._finder.close()
            self._finder, self._tail, self._next_offset = None, self._partition.tail(end), end
            self._since_ms = self._answered_ms = now_ms
            return
        self._finder.ask()

    def _read(self, tail: Tail, now_ms: int) -> None:
        for entry in tail.read(self._limits.read_max):
            self._next_offset = entry.offset + 1
            state = decode_body(entry.data, NodeState)
            if state is not None and state.node.name:
                self._views.read(state, now_ms)
                if state.node.name == self._node.name and state.node.life != self._node.life:
                    self._doubt(state.node, now_ms)
        if tail.asked_ms is not None:
            self._answered_ms = tail.asked_ms
            self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if now_ms - self._answered_ms > self._limits.answer_ms_max:
            self._since_ms = None
        calm = self._doubted_ms is None or now_ms - self._doubted_ms >= self._limits.learn_ms
        self.named = self.named or (calm and self.is_complete(now_ms))
        if now_ms - self._asked_ms >= self._limits.append_ms:
            self._asked_ms = now_ms
            tail.ask()

    def _doubt(self, other: Node, now_ms: int) -> None:
        if self.named:
            return
        if self._doubted_ms is None:
            self._doubted_ms = now_ms
        elif now_ms - self._doubted_ms >= self._limits.append_ms // 2:
            self.twin = other

    def _begin_again(self) -> None:
        for tail in (self._finder, self._tail):
            if tail is not None:
                tail.close()
        self._finder = self._tail = self._since_ms = None
        self._views.clear()

    def is_complete(self, now_ms: int) -> bool:
        """Whether it has listened for long enough, and the partition answers."""
        return self._since_ms is not None and now_ms - self._since_ms >= self._limits.learn_ms

    def views(self, mine: NodeState, now_ms: int) -> list[NodeView]:
        """Return what is known of the live nodes, and of this one."""
        me = NodeView.of(mine)
        return [me, *(view for view in self._views.live(now_ms) if view.name != me.name)]

    def trim(self, now_ms: int) -> None:
        """Remove the records that no reader needs. Call it on one node, any number of times."""
        if now_ms - self._trimmed_ms >= self._limits.trim_ms:
            self._trimmed_ms = now_ms
            if (offset := self._next_offset - self._limits.keep_records) > 0:
                self._partition.trim(offset)

    def close(self) -> None:
        """End."""
        self._begin_again()
        self._appender.close()


def _without_delays(state: NodeState) -> tuple[object, ...]:
    return state.leads, state.follows.keys(), state.drains, state.apart, state.failing


LAST_RECORDS: Final = 1000
"""How many records are read. Each node appends the fingerprint once a second, except for nodes of an earlier release."""
READ_MAX: Final = 100


def find_keys(partition: Partition, pause: Callable[[], None]) -> str:
    """Return the last fingerprint of keys in the partition; empty: no node has appended one.

    ``pause``: called before each look at whether the partition has answered. It raises when that takes too long.
    """
    finder = partition.tail(0)
    try:
        while (end := finder.end) is None:
            finder.ask()  # again, if the last question failed: the topic may be new
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

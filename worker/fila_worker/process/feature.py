"""The interface of a worker process's features.

A *feature* is a topic of the process with everything that belongs to it: its commands, its state, and its work at a due time.
A process has one list of features (:class:`Features`), and calls them in that order. So a new topic is one more module, and
an argument where the process is made (:func:`fila_worker.loop.open_host`). The process itself imports only the features that
each process has. A shard has components for the same reason (:mod:`fila_worker.core.model.component`).

A feature has one due time, as a component has. Code with an earlier one lowers it, and ``turn`` returns the next one. An
agenda bounds all of them, so a turn without due work costs one comparison.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fila_worker.core.due_time import AT_ONCE, NEVER, Agenda, DueTime

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command, Reply
    from fila_worker.core.effects import ClientCall, Post
    from fila_worker.core.shard import Shard
    from fila_worker.process.shard_process import ShardProcess
    from fila_worker.process.slots import Slot

CommandHandler: TypeAlias = "Callable[[ClientCall, Any], Reply | Slot | None]"
"""Carries out one kind of command. Returns the answer, which is sent once all shards' commits so far are confirmed; the slot
of the shard that carries it out; or None if the answer comes another way, or never. Raises the :class:`FilaError` that
refuses it."""

MessageHandler: TypeAlias = "Callable[[Any, int], None]"
"""Handles one kind of message without an answer; the last argument is the time, Unix ms."""

IN_PASSING: Final = -1
"""A due time for work that each turn has to check, but that causes no turn."""


class ProcessFeature:
    """A part of a process. Only the process calls these methods, in the order of its list."""

    process: "ShardProcess"

    def __init__(self) -> None:
        self.commands: Mapping[type[Command], CommandHandler] = {}
        """Its commands."""
        self.messages: Mapping[type[Command], MessageHandler] = {}
        """Its commands without an answer."""
        self.timer = DueTime()

    def attach(self, process: "ShardProcess", now_ms: int) -> None:
        """Become a feature of a process, before its first turn."""
        self.process = process

    def begin_turn(self, now_ms: int) -> None:
        """Begin a turn, before its frames are accepted. A feature with this method is called in each turn."""

    def turn(self, now_ms: int) -> int | None:
        """Do the due work, before the shards' turns. Return the next due time, Unix ms; None: when it is lowered."""
        return None

    def on_open(self, shard: "Shard", now_ms: int) -> None:
        """Adjust to a shard that was opened."""

    def on_post(self, post: "Post") -> bool:
        """Take note of a command that a shard sends. Return whether it stays in the process."""
        return False

    def retire(self) -> None:
        """Begin to give up what another process can take over, because this one is about to end."""

    def close(self) -> None:
        """Release what the feature has outside of the process's memory."""


class Features:
    """The features of a process, in the order of a turn, with an index of what each of them takes part in."""

    def __init__(self) -> None:
        self.commands: dict[type[Command], CommandHandler] = {}
        self.messages: dict[type[Command], MessageHandler] = {}
        """Of all features. If several have the same kind, the first of them counts."""
        self.timed: list[tuple[DueTime, Callable[[int], int | None]]] = []
        """Called in a turn, each at its time."""
        self._agenda = Agenda()
        self.beginning: list[Callable[[int], None]] = []
        """Called at the beginning of each turn."""
        self.posted: list[Callable[[Post], bool]] = []
        """Called with each command that a shard sends."""
        self._all: list[ProcessFeature] = []

    def __iter__(self) -> Iterator[ProcessFeature]:
        return iter(self._all)

    def add(self, feature: ProcessFeature) -> None:
        """Append a feature to the list."""
        kind = type(feature)
        self._all.append(feature)
        self.commands = {**feature.commands, **self.commands}
        self.messages = {**feature.messages, **self.messages}
        if kind.turn is not ProcessFeature.turn:
            self.timed.append((feature.timer, feature.turn))
            feature.timer.enter(self._agenda)
        if kind.begin_turn is not ProcessFeature.begin_turn:
            self.beginning.append(feature.begin_turn)
        if kind.on_post is not ProcessFeature.on_post:
            self.posted.append(feature.on_post)

    def turn(self, now_ms: int) -> None:
        """Call the features that are due."""
        if self._agenda.due_ms > now_ms:
            return
        for timer, turn in self.timed:
            if timer.due_ms <= now_ms:
                timer.due_ms = NEVER
                timer.by(turn(now_ms))
        self._agenda.due_ms = min([timer.due_ms for timer, _ in self.timed])

    def next_due(self) -> int:
        """Return a time before which no feature causes a turn, Unix ms."""
        due_ms = self._agenda.due_ms
        if due_ms == IN_PASSING:
            return min([timer.due_ms for timer, _ in self.timed if timer.due_ms != IN_PASSING], default=NEVER)
        return due_ms

    def call_all(self) -> None:
        """Call each feature in the next turn: the clock was set back, so all due times are in doubt."""
        for timer, _ in self.timed:
            timer.by(AT_ONCE)

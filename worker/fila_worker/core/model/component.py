"""The interface of a shard's components.

A *component* is a feature with everything that belongs to it: its commands, its state in memory and the recovery of that
state, its work when a time is due, and its invariants. A shard has one list of components, :data:`core.shard.COMPONENTS`, and
calls them in that order. So a feature with a state and a timer is a module of its own and a line in that list.

A component has one due time, :attr:`~core.due_time.DueTime.due_ms`. Code with an earlier one lowers it
(:meth:`~core.due_time.DueTime.by`), and ``tick`` returns the next one. It may be too early, because the due work may be gone
by then, but never too late. An agenda bounds all of them, so a turn without due work costs one comparison.

Rejected: a heap of deadlines. The order within a turn is that of the list, because messages that come back must be in line
before the delivery. And a shard has some twenty components: to compare as many numbers takes less than a microsecond.
"""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fila_worker.core.due_time import DueTime

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command, Grants, Reply
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.state import State

Verb: TypeAlias = "Callable[[State, ClientCall, Any], Reply | Work | None]"
"""Carries out one kind of command. Returns the answer; None if the answer comes later, or never; work if it may take long."""

PeerVerb: TypeAlias = "Callable[[State, Any, int], None]"
"""Handles one kind of message of another shard; the last argument is the time. An answer is another message."""

Steps: TypeAlias = Generator[None, int | None, None]
"""Work in steps. The time, Unix ms, may be sent with each step."""


class InvariantBroken(AssertionError):  # noqa: N818
    """The state of a shard contradicts itself. This is a bug in the broker, never in its input."""


class Component:
    """A part of a shard. Only the shard calls its methods, in the order of the list."""

    verbs: ClassVar["Mapping[type[Command], Verb]"] = {}
    """Its commands for clients."""

    peer_verbs: ClassVar["Mapping[type[Command], PeerVerb]"] = {}
    """Its messages from other shards."""

    patient: ClassVar[bool] = False
    """Whether it spares leases and consumers that may be renewed by frames not read yet (:attr:`Shard.behind`)."""

    in_passing: ClassVar[bool] = False
    """Whether due work may wait for a turn that has another cause."""

    def __init__(self, state: "State", timer: DueTime | None = None) -> None:
        """``timer``: the due time in the part of the state that changes it; by default a new one."""
        self.state = state
        self.timer = timer or DueTime()

    def recover(self, now_ms: int) -> Steps:
        """Read the state from disk, in steps of a bounded number of records. Raise :class:`DamageError`."""
        yield from ()

    def tick(self, now_ms: int) -> int | None:
        """Do a bounded part of the due work. Return the next due time, Unix ms; None: not before the due time is lowered."""
        return None

    def on_config(self, now_ms: int) -> None:
        """Follow a change of the runtime config."""

    def on_grants(self, grants: "Grants", now_ms: int) -> None:
        """Take in grants of the token bank."""

    def on_session(self, now_ms: int) -> None:
        """Begin a session with the token bank, because the router has registered this shard again."""

    def check(self) -> None:
        """Raise :class:`InvariantBroken` if an invariant between turns does not hold."""

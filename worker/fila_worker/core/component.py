"""The seam for features: what a shard asks of each of its parts.

A *component* is a feature with what belongs to it: the commands that it carries out, what it keeps in memory, how that is recovered, what it
does when its time comes, and what must hold of it. A shard has one list of them, :data:`core.components.COMPONENTS`, and asks each in that
order. So a feature with a state and a timer is a module of its own and a line in that list.

A component acts by the clock through one number, :attr:`~core.timer.Timer.due_ms`. It is lowered wherever something is due sooner (:meth:`~core.timer.Timer.by`), and
``tick`` returns the next one. It may be too early, never too late: what was due may be gone by then. A turn asks no component whose time
has not come, so a turn with nothing to do costs a comparison for each component.

Rejected: a heap of deadlines. The order within a turn is that of the list, because messages that come back must be there before the
delivery; and a shard has some twenty components: to compare that many numbers takes less than a microsecond.
"""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fila_worker.core.timer import Timer

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command, Grants, Reply
    from fila_worker.core.effects import Call
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.state import State

Verb: TypeAlias = "Callable[[State, Call, Any], Reply | Work | None]"
"""Carries out one kind of command. Returns None if the answer comes later, or never; work if it may take long."""

PeerVerb: TypeAlias = "Callable[[State, Any, int], None]"
"""Takes in one kind of message of another shard, at a time. Nothing is answered but by a message in turn."""

Steps: TypeAlias = Generator[None, int | None, None]
"""What is done in steps. It may be sent the time with each, Unix ms."""


class InvariantBroken(AssertionError):  # noqa: N818
    """A shard contradicts itself: a bug in the broker, never in its input."""


class Component:
    """A part of a shard. The methods are called by the shard only, in the order of the list."""

    verbs: ClassVar["Mapping[type[Command], Verb]"] = {}
    """What it does for clients, by command."""

    peer_verbs: ClassVar["Mapping[type[Command], PeerVerb]"] = {}
    """What it does for other shards."""

    patient: ClassVar[bool] = False
    """Whether it leaves alone what clients may have kept alive with frames that are yet to be read (:attr:`Shard.behind`)."""

    in_passing: ClassVar[bool] = False
    """Whether what is due may wait for a turn that something else brings about."""

    def __init__(self, state: "State", timer: Timer | None = None) -> None:
        """``timer``: of the part of the state that knows when something is due; by default one of its own."""
        self.state = state
        self.timer = timer or Timer()

    def recover(self, now_ms: int) -> Steps:
        """Take up what is on disk, in steps of a bounded number of records. Raises :class:`DamageError`."""
        yield from ()

    def tick(self, now_ms: int) -> int | None:
        """Do what is due, a bounded part of it; returns when there is more to do, Unix ms, None for not before the timer is lowered."""
        return None

    def on_config(self, now_ms: int) -> None:
        """Follow the runtime config, which has changed."""

    def on_grants(self, grants: "Grants", now_ms: int) -> None:
        """Take in what the token bank granted."""

    def on_session(self, now_ms: int) -> None:
        """Begin anew with the token bank: the router knows this shard anew."""

    def check(self) -> None:
        """Raise :class:`InvariantBroken` if what must hold between turns does not."""

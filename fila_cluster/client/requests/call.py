"""Results that a caller waits for, and one request on its way.

The session completes a :class:`Pending`; its waiter has put a ``wake`` there. So the session has neither futures
nor locks, and both shells share it.
"""

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from fila_proto_zmq import commands
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.errors import FilaError

if TYPE_CHECKING:
    from fila_cluster.client.requests.routes import ShardRoute, Way

T = TypeVar("T")

_NOT_REPEATABLE = (
    commands.Redrive,
    commands.MoveMessages,
    commands.CreateQueue,
    commands.DeleteQueue,
    commands.PurgeQueue,
    commands.Cancel,
    commands.SetConfig,
    commands.UndoConfig,
    commands.Pause,
    commands.UpdateQueue,
    commands.CreatePartitioned,
    commands.UpdatePartitioned,
    commands.DeletePartitioned,
    commands.PutTemplate,
    commands.DeleteTemplate,
)
"""Done twice, these have another effect or another answer than done once, or undo a change that another client made between
the two. Repetitions of the others do no harm. (A receive that is repeated under its request id gets the same messages again.)
"""

_OVERHEAD_BYTES = 512
"""The size of a call beside its body: many small ones take as much memory as a large one."""

_OF_A_SCHEDULE = (commands.PutSchedule, commands.GetSchedule, commands.DeleteSchedule)
"""Their routing key is a schedule's name."""

_ABOUT_THE_STATE = (commands.Explain,)
"""An outage of a shard is an answer to these: they are not repeated until it is over."""


def _is_repeatable(command: commands.Command) -> bool:
    """Return whether it may be sent again although it may be done: an enqueue, if the broker recognizes all its messages."""
    if isinstance(command, commands.Enqueue):
        return bool(command.dedup_id) if isinstance(command.dedup_id, str) else all(command.dedup_id)
    return not isinstance(command, _NOT_REPEATABLE)


@dataclass(slots=True, eq=False, repr=False)
class Pending(Generic[T]):
    """A result that is not there yet. Completed once, by the session."""

    done: bool = field(default=False, init=False)
    value: T = field(default=None, init=False)  # type: ignore[assignment] # to be read when it is done without an error
    error: FilaError | None = field(default=None, init=False)
    wake: Callable[[], object] | None = field(default=None, init=False)

    def finish(self, value: T | None = None, error: FilaError | None = None) -> None:
        """Complete it and wake the waiter; a second completion has no effect."""
        if self.done:
            return
        self.done = True
        self.value = value  # type: ignore[assignment]
        self.error = error
        if self.wake is not None:
            self.wake()

    def outcome(self) -> T:
        """Return the value, or raise the error; call it once."""
        error, self.error = self.error, None  # the traceback holds this frame: no cycle through self
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self.value


@dataclass(slots=True, eq=False, repr=False)
class PendingCall(Pending[Any]):
    """One request: its command, its deadline, and what follows its answer.

    ``persistent`` calls are retried where that is safe; the others (heartbeats) have a next one anyway.
    ``sent`` means that a broker may have it, ``doubtful`` that an earlier attempt may have been begun. ``retry_at`` is set
    between a refusal and the next attempt. ``place`` is the place of its frame among all frames given to the socket of
    its ``way``. ``under_way``: it was sent there, and is not answered.
    ``routed``: its shard counts it as under way through the router. ``then``
    is the session's own continuation, run before a waiter is woken.
    """

    key: str
    command: commands.Command
    now: InitVar[float]
    timeout: float
    then: "Callable[[PendingCall], None] | None" = None
    persistent: bool = True
    deadline: float = math.inf
    request: int = 0
    frames: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    place: int = -1
    sent: bool = False
    way: "Way | None" = None
    shard: "ShardRoute | None" = None
    under_way: bool = False
    routed: bool = False
    doubtful: bool = False
    wait_until: float = math.inf
    patience: float = math.inf
    """How long it may take beside its waiting, in seconds."""
    away_until: float = math.inf
    attempts: int = 0
    retry_at: float | None = None
    weight: int = 0
    """In the answer to a receive: the sum of the weights of the keys that have more."""
    strays: int = 0
    """In the answer to a receive that gave nothing: see :class:`~fila_proto_zmq.commands.Delivered`."""

    def __post_init__(self, now: float) -> None:
        self.deadline = self.wait_until = now + self.timeout
        self.patience = self.timeout
        if type(self.command) is commands.Receive:
            self.wait_until = now + self.command.wait_ms / 1000
            self.patience -= self.command.wait_ms / 1000

    def encode(self) -> None:
        """Make the frames of the request; its way gives it a header."""
        self._encode(self.command)
        self.size_bytes = len(self.frames[2]) + _OVERHEAD_BYTES

    def _encode(self, command: commands.Command) -> None:
        self.frames = [b"", self.key.encode(), encode_body(command)]

    @property
    def ends_at(self) -> float:
        """The latest end. A receive may wait for hours, but not for hours for a broker that is away."""
        return min(self.deadline, self.away_until)

    def lose_link(self, now: float) -> None:
        """Wait for the next link to be sent again; a receive waits no longer than any other call."""
        self.go_back(now)
        if type(self.command) is commands.Receive:
            self.away_until = now + self.patience

    def go_back(self, now: float) -> None:
        """Be ready to be sent again; a receive waits for what is left of its time."""
        self.sent = False
        self.place = -1
        if type(self.command) is commands.Receive and self.command.wait_ms:
            wait_ms = round(1000 * max(0.0, self.wait_until - now))
            self._encode(replace(self.command, wait_ms=wait_ms))

    @property
    def may_be_done(self) -> bool:
        """Whether a broker may have begun it."""
        return self.sent or self.doubtful

    @property
    def is_held(self) -> bool:
        """Whether it waits on its way, to be sent soon."""
        return self.way is not None and self.request in self.way.held

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again although it may have been done."""
        return _is_repeatable(self.command)

    def is_answered_by(self, error: FilaError) -> bool:
        """Return whether the outage of a shard is the answer that the caller wants."""
        return "shard" in error.details and isinstance(self.command, _ABOUT_THE_STATE)

    def finish(self, value: Any = None, error: FilaError | None = None) -> None:
        """Complete it: the continuation comes first, and may refine the result; then the waiter is woken."""
        if self.done:
            return
        self.frames = []
        self.value = value
        self.error = error
        if self.then is not None:
            self.then(self)
        Pending.finish(self, self.value, self.error)

    def __str__(self) -> str:
        name = type(self.command).__name__
        kind = "schedule" if isinstance(self.command, _OF_A_SCHEDULE) else "queue"
        return f"{name} of {kind} {self.key!r}" if self.key else name


class StartCall(Protocol):
    """Start a call of the session."""

    def __call__(
        self,
        key: str,
        command: commands.Command,
        then: Callable[[PendingCall], None] | None = None,
        *,
        timeout: float | None = None,
        persistent: bool = True,
    ) -> PendingCall:
        """See :class:`PendingCall`; without ``timeout``, the client's."""

"""The interface of a router's features, and the state that they share.

A *feature* has everything that belongs to one topic: the commands of clients that the router carries out itself, the messages
and answers of workers, its part in the life of a worker, and its work when a time is due. A router has one list of features,
in the constructor of :class:`~core.router.Router`, and calls them in that order. So a new feature is a module of its own and
a line in that list.

A feature has one due time, :attr:`RouterFeature.due_ms`. A handler whose work is due earlier lowers it, and ``tick`` returns
the next one. A tick calls no feature whose time has not come, so a feature without work costs one comparison.

A frame of a queue calls no feature: the router forwards it by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from fila_admission.refusals import interrupted, unavailable
from fila_proto_zmq.commands import ClusterStatus, Command, Pulse, Pulsed, Register, Registered, Reply
from fila_proto_zmq.frames import Header
from fila_router.core.answers import OutgoingFrames, ReturnAddress
from fila_router.core.counters import RouterCounters
from fila_router.core.limits import RouterLimits
from fila_router.core.routing import RoutingTable
from fila_router.core.sessions import Sessions
from fila_router.core.unread import RouterSession, Unread
from fila_router.core.worker_state import WorkerState

EACH_TICK: Final = -(1 << 62)
NEVER: Final = 1 << 62
"""Due times, ms: at each tick, and at no tick."""

_SILENCE_TIMEOUTS: Final = 10
"""A session lives for at least this many consumer timeouts: by then it holds nothing at any worker."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings that do not change while a router runs. ``several``: there are other routers, and a log under each shard."""

    shards_total: int
    consumer_timeout_ms: int
    max_payload_bytes: int
    version: str
    several: bool = False


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that is for no queue, and its session."""

    session: RouterSession
    header: bytes
    key: bytes
    body: bytes
    now_ms: int

    @property
    def address(self) -> ReturnAddress:
        """Where its answer goes."""
        return ReturnAddress(self.session.client, self.header, self.key)


class Forward(NamedTuple):
    """The worker that carries out a request, as the owner of ``shard``."""

    worker: WorkerState
    shard: int


ClientHandler: TypeAlias = Callable[[ClientRequest, Any], Reply | Forward | None]
"""Carries out a command of a client. Returns the answer; None if the answer comes later. Raises the error that refuses it."""

MessageHandler: TypeAlias = Callable[[WorkerState, Any, int, int], None]
"""Takes in a worker's message that has no answer. The last arguments are its request id and the time."""

AnswerHandler: TypeAlias = Callable[[WorkerState, Header, bytes, int], None]
"""Takes in a worker's answer to a question of the router. The arguments are its header, its body and the time."""


@dataclass(slots=True)
class Registration:
    """A worker that registers. Features add to ``answer`` what it lacks. ``superseded``: lost shards, by previous owners."""

    worker: WorkerState
    offer: Register
    superseded: list[tuple[WorkerState, frozenset[int]]]
    answer: Registered
    now_ms: int


class RouterState:
    """The state that several features use."""

    def __init__(self, settings: ClusterSettings, entropy: Callable[[int], bytes], limits: RouterLimits) -> None:
        """``entropy(n)``: returns n random bytes."""
        self.settings = settings
        self.limits = limits
        self.counters = RouterCounters()
        self.outgoing = OutgoingFrames(self.counters, limits)
        self.unread = Unread(limits)
        silence_ms_max = max(limits.session_silence_ms, _SILENCE_TIMEOUTS * settings.consumer_timeout_ms)
        self.sessions = Sessions(limits, silence_ms_max, entropy, self.unread)
        self.table = RoutingTable(settings.shards_total, limits)
        self.started = False
        """Whether clients' frames may be forwarded."""
        self.wall_ahead_ms = 0
        """How far the wall clock, which workers use for dates, is ahead of the router's (negative: behind)."""
        self.features: tuple[RouterFeature, ...] = ()

    def wall_ms(self, now_ms: int) -> int:
        """Return the time of the wall clock, Unix ms."""
        return now_ms + self.wall_ahead_ms

    def check_started(self) -> None:
        """Raise :class:`ShardUnavailableError` if clients' frames may not be forwarded yet."""
        if not self.started:
            raise unavailable(0)

    def status(self) -> ClusterStatus:
        """Return the workers with their shards."""
        return ClusterStatus(self.settings.version, self.settings.shards_total, self.table.status())

    def abandon(self, worker: WorkerState, shards: frozenset[int]) -> None:
        """Answer the requests for ``shards`` that ``worker`` can't answer any more."""
        for client, header, key, shard, *_ in worker.in_flight.take(shards):
            self.outgoing.refuse(ReturnAddress(client, header, key), interrupted(shard))
        for feature in self.features:
            feature.on_abandoned(worker, shards)


class RouterFeature:
    """A part of a router. The router calls its methods, in the order of the list."""

    def __init__(self, state: RouterState) -> None:
        self.state = state
        self.due_ms = EACH_TICK
        """When :meth:`tick` has work, or earlier."""
        self.commands: Mapping[type[Command], ClientHandler] = {}
        """Its commands for clients."""
        self.messages: Mapping[type[Command], MessageHandler] = {}
        """Its messages of workers."""
        self.answers: Mapping[type[Command], AnswerHandler] = {}
        """Its questions to workers."""

    def on_register(self, registration: Registration) -> None:
        """Bring a worker up to date that has registered, and follow what the registration changes."""

    def on_return(self, worker: WorkerState, now_ms: int) -> None:
        """Bring a worker up to date that was lost and is back, before any other frame is sent to it."""

    def on_pulse(self, worker: WorkerState, pulse: Pulse, answer: Pulsed, now_ms: int) -> None:
        """Follow a worker's pulse, and add to its answer."""

    def on_absent(self, worker: WorkerState, now_ms: int) -> None:
        """Wait no longer for a worker that leaves or is lost."""

    def on_abandoned(self, worker: WorkerState, shards: frozenset[int]) -> None:
        """Answer the clients that wait for an answer that ``worker`` can't give any more, because it has lost ``shards``."""

    def tick(self, now_ms: int) -> int:
        """Do the work that is due, and return when to call it next."""
        return NEVER

    def sweep(self, now_ms: int) -> None:
        """Forget what is no longer needed. Called once in a while."""

"""Administrative acts: which requests are some, and the trail that they leave.

The process that takes an act in notes it: the router, or a worker at its own door. So there is one entry for each act,
whatever it is fanned out to. Who asks, from where and for which queue is noted before anything is checked; the rest is read
from the command once that was taken in. Everything is bounded. Acts that were done and those that were refused are kept
apart, and refusals of one kind are one entry for some time: so who may do nothing can neither push out what others did, nor
flood the log.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from fila_admission.in_flight import CALL_MS_MAX
from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.errors import FilaError, UnauthenticatedError
from fila_proto_zmq.events import TEXT_MAX, AdminActed, printable
from fila_proto_zmq.frames import ERROR, pack_header
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.names import whole_queue

DONE: Final = "ok"
UNANSWERED: Final = "UNANSWERED"
"""The result of an act that nobody waits for any more: whether it was done is not known."""

TOGETHER_MS: Final = 10_000
"""How long the steps of one act, and refusals of one kind, are one entry."""

READ_BYTES_MAX: Final = 1024 * 1024
"""A larger command is not read for its details: two scripts are smaller."""


def _given(command: wire.UpdateQueue | wire.UpdatePartitioned) -> str:
    return ", ".join(field for field in command.options.__struct_fields__ if field in command.given)


def _set(command: wire.CreateQueue | wire.CreatePartitioned | wire.PutTemplate) -> str:
    return ", ".join(field for field in command.options.__struct_fields__ if getattr(command.options, field) is not None)


def _of_key(command: wire.PurgeQueue | wire.Pause | wire.Redrive) -> str:
    return "" if command.fairness_key is None else f"key {command.fairness_key}"


def _moved(command: wire.MoveMessages) -> str:
    return f"to {command.target}" + ("" if command.fairness_key is None else f", key {command.fairness_key}")


def _forced(command: wire.DeleteQueue | wire.UndoConfig) -> str:
    return "force" if command.force else ""


def _allowed(command: wire.CreateKey | wire.GrantKey) -> str:
    return " ".join(command.allow)


def _due(command: wire.PutSchedule) -> str:
    return f"queue {command.queue}, {command.cron or f'every {command.every_ms} ms'}"


class _Kind(NamedTuple):
    """A kind of act. ``target``: its subject; without one it is the queue that the request comes for."""

    verb: str
    details: Callable[[Any], str] = lambda command: ""
    target: Callable[[Any], str] | None = None


_KINDS: Final[dict[type[wire.Command], _Kind]] = {
    wire.CreateQueue: _Kind("queue.create", _set),
    wire.UpdateQueue: _Kind("queue.update", _given),
    wire.DeleteQueue: _Kind("queue.delete", _forced),
    wire.CreatePartitioned: _Kind("queue.create", _set, attrgetter("queue")),
    wire.UpdatePartitioned: _Kind("queue.update", _given, attrgetter("queue")),
    wire.DeletePartitioned: _Kind("queue.delete", target=attrgetter("queue")),
    wire.PurgeQueue: _Kind("queue.purge", _of_key),
    wire.Pause: _Kind("queue.pause", _of_key),
    wire.Redrive: _Kind("queue.redrive", _of_key),
    wire.MoveMessages: _Kind("queue.move", _moved),
    wire.Cancel: _Kind("message.cancel", lambda command: f"message {format_id(command.id_high, command.id_low)}"),
    wire.PutSchedule: _Kind("schedule.put", _due),
    wire.DeleteSchedule: _Kind("schedule.delete"),
    wire.SetConfig: _Kind("config.set", target=attrgetter("key")),
    wire.UndoConfig: _Kind("config.undo", _forced, lambda command: f"version {command.version}"),
    wire.PutTemplate: _Kind("template.put", _set, attrgetter("pattern")),
    wire.DeleteTemplate: _Kind("template.delete", target=attrgetter("pattern")),
    wire.CreateKey: _Kind("key.create", _allowed, attrgetter("name")),
    wire.GrantKey: _Kind("key.grant", _allowed, attrgetter("name")),
    wire.RevokeKey: _Kind("key.revoke", target=attrgetter("name")),
    wire.BeginBackup: _Kind("backup.begin", target=attrgetter("backup")),
    wire.CloseConnection: _Kind("connection.close", target=attrgetter("client")),
    wire.MoveShard: _Kind("shard.move", lambda command: f"to {command.worker}", lambda command: f"shard {command.shard}"),
    wire.DrainWorker: _Kind("worker.drain", target=attrgetter("worker")),
}
_OPPOSITES: Final[dict[type[wire.Command], tuple[Callable[[Any], bool], str]]] = {
    wire.Pause: (lambda command: not command.paused, "queue.resume"),
    wire.SetConfig: (lambda command: command.value is None, "config.delete"),
    wire.DrainWorker: (lambda command: command.undo, "worker.undrain"),
}
"""Commands that also do the opposite: when, and its verb."""

_VERBS: Final = {command.opcode: kind.verb for command, kind in _KINDS.items()}
ACT_OPCODES: Final = frozenset(_VERBS)
ACTS: Final = frozenset(pack_header(opcode)[:6] for opcode in ACT_OPCODES)
"""First six bytes (magic, version, opcode, flags) of requests for administrative acts."""

_IN_STEPS: Final = frozenset(
    _VERBS[command.opcode] for command in (wire.PurgeQueue, wire.Redrive, wire.MoveMessages, wire.BeginBackup)
)
"""Verbs whose one act may be several requests."""


class Audit:
    """The acts under way, by their tickets (client id + request id), and the latest that have ended.

    Acts under way are bounded by what their process takes in: each request has an answer, or is forgotten.
    """

    def __init__(self, acts_max: int) -> None:
        """``acts_max``: how many acts are remembered, and how many refusals."""
        self._open: dict[bytes, wire.Act] = {}
        self._trail = Trail(acts_max)

    def begin(self, client: bytes, header: bytes, key: bytes, caller: tuple[str, str, str], wall_ms: int) -> None:
        """Note that an act is asked for. ``caller``: the names of the API key and of the client, and the address."""
        by, name, address = caller
        target = _shown(whole_queue(str(key, "utf-8", "replace")))
        self._open[client + header[10:]] = wire.Act(wall_ms, by, name, address, _VERBS[header[3]], target, "", DONE)

    def read(self, client: bytes, header: bytes, body: Any) -> None:
        """Note the details of an act that was taken in, and that its worker has yet to check."""
        if len(body) <= READ_BYTES_MAX:
            try:
                self.describe(client, header, decode_body(wire.BY_OPCODE[header[3]], bytes(body)))
            except FilaError:
                return  # its worker refuses it

    def describe(self, client: bytes, header: bytes, command: wire.Command) -> None:
        """Note the details of an act, if there is one with this ticket."""
        act = self._open.get(client + header[10:])
        if act is not None:
            _describe(act, command)

    def end(self, client: bytes, header: bytes, result: str = DONE) -> AdminActed | None:
        """Note the answer to a request, if that is an act. Return the event for the log, if there is one."""
        if not self._open:
            return None
        act = self._open.pop(client + header[10:], None)
        return None if act is None else self._ended(act, result)

    def answered(self, client: bytes, header: bytes, body: Any) -> AdminActed | None:
        """Note the answer of a worker."""
        result = DONE
        if header[5] & ERROR:
            try:
                result = decode_body(wire.Fault, bytes(body)).code
            except FilaError as unreadable:
                result = unreadable.code
        return self.end(client, header, result)

    def forget(self, client: bytes, header: bytes) -> None:
        """Drop an act that another process notes."""
        if self._open:
            self._open.pop(client + header[10:], None)

    def forget_overdue(self, wall_ms: int) -> list[AdminActed]:
        """End the acts that no client waits for any more. Return events for the log."""
        overdue = [ticket for ticket, act in self._open.items() if abs(wall_ms - act.at_ms) > CALL_MS_MAX]
        ended = [self._ended(self._open.pop(ticket), UNANSWERED) for ticket in overdue]
        return [event for event in ended if event is not None]

    def _ended(self, act: wire.Act, result: str) -> AdminActed | None:
        act.result = result
        if not self._trail.add(act):
            return None
        return AdminActed(act.by, act.client, act.address, act.verb, act.target, act.details, act.result)

    def heard(self, acts: Iterable[wire.Act]) -> None:
        """Add acts that another process has noted, and logged."""
        for act in acts:
            self._trail.add(act)

    def latest(self, count: int) -> list[wire.Act]:
        """Return the latest acts, the latest first."""
        return self._trail.latest(count)

    def take(self) -> list[wire.Act]:
        """Return the acts that ended since the last call."""
        return self._trail.take()

    def __len__(self) -> int:
        """Return how many acts are under way."""
        return len(self._open)


@dataclass(slots=True)
class _Group:
    """Acts that are one entry. ``act``: that entry; None: it was taken."""

    since_ms: int
    act: wire.Act | None = None


class Trail:
    """The latest acts: those that were done, and those that were refused."""

    def __init__(self, acts_max: int) -> None:
        self._acts_max = acts_max
        self._done: deque[wire.Act] = deque(maxlen=acts_max)
        self._refused: deque[wire.Act] = deque(maxlen=acts_max)
        self._groups: OrderedDict[tuple[str, ...], _Group] = OrderedDict()

    def add(self, act: wire.Act) -> bool:
        """Add an act that has ended. Return whether it is worth a line in the log: it does not belong to an earlier one."""
        kept = self._done if act.result == DONE else self._refused
        name = _group_of(act)
        if name is None:
            kept.append(act)
            return True
        group = self._groups.get(name)
        new = group is None or not 0 <= act.at_ms - group.since_ms < TOGETHER_MS
        if group is None or new:
            self._groups.pop(name, None)
            group = self._groups[name] = _Group(act.at_ms)
            if len(self._groups) > self._acts_max:
                self._groups.popitem(last=False)
        if group.act is None:
            group.act = act
            kept.append(act)
        else:
            group.act.times += act.times
            group.act.target = act.target
        return new

    def latest(self, count: int) -> list[wire.Act]:
        """Return the latest, the latest first."""
        return sorted([*reversed(self._done), *reversed(self._refused)], key=lambda act: act.at_ms, reverse=True)[:count]

    def take(self) -> list[wire.Act]:
        """Return all, and forget them: later acts of their groups are new entries."""
        if not self._done and not self._refused:
            return []
        taken = [*self._done, *self._refused]
        self._done.clear()
        self._refused.clear()
        for group in self._groups.values():
            group.act = None
        return taken


def _group_of(act: wire.Act) -> tuple[str, ...] | None:
    """Return what acts have in common that are one entry; None: it is an entry of its own."""
    if act.result == UnauthenticatedError.code:  # whoever it is can be somebody else at the next connection
        return (act.verb, act.result)
    if act.result != DONE:
        return (act.by or act.client, act.verb, act.result)
    return (act.by, act.client, act.verb, act.target, act.details) if act.verb in _IN_STEPS else None


def _describe(act: wire.Act, command: wire.Command) -> None:
    """Add what a command says: never a value, a script or a secret."""
    if type(command) in _OPPOSITES:
        is_opposite, verb = _OPPOSITES[type(command)]
        act.verb = verb if is_opposite(command) else act.verb
    if (kind := _KINDS.get(type(command))) is not None:
        act.target = act.target if kind.target is None else _shown(kind.target(command))
        act.details = _shown(kind.details(command))


def _shown(text: str) -> str:
    """Return a text without what steers a terminal, cut: names come from users."""
    return printable(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")

"""Who may do what: no call of a key without the right takes effect, or is answered with anything but the right error; no key works for
longer than a second once it was revoked or is over; and those who have the right are never refused."""

from typing import TYPE_CHECKING

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import DELIVERY, Fault
from fila_proto_zmq.errors import (
    BatchError,
    FilaError,
    InvalidFrameError,
    OverloadedError,
    PermissionDeniedError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, unpack_header
from tests.simulation.actors.clients import RawPeer
from tests.simulation.history import Done, History, KeyLife
from tests.simulation.world.key_file import ADMIN

if TYPE_CHECKING:
    from tests.simulation.run import Run

LATE_US = 1_000_000
"""How long a key may still work on some process after it has ended."""
CUT_OFF_US = 3_000_000
"""The same where faults may keep a worker from hearing of it: a worker that does not hear of its router serves nobody for longer."""
CLOCK_US = 3_000_000
"""How far clocks may be apart that were set once."""
HOSTS_CLOCK_US = 60_000_000
"""How far a host's clock may be off where clocks of hosts differ from the beginning."""
SLACK_US = 100_000
REMEMBERED_US = 1_000_000
"""How long a client takes a refused greeting for the answer to its calls."""

SETTLING = ("ack", "nack", "retry", "fail", "defer", "extend")
NEEDS = {
    "enqueue": "produce", "enqueue_many": "produce", "receive": "consume", "browse": "consume", "pause": "admin", "resume": "admin",
    "purge_queue": "admin", "update_queue": "admin", "queue_stats": "any", **dict.fromkeys(SETTLING, "consume"),
}  # fmt: skip
"""The kind of permission that calls need on their queues."""
CLUSTER = (
    "set_config",
    "get_config",
    "delete_config",
    "set_throttle",
    "delete_throttle",
    "list_throttles",
    "describe_throttle",
)
"""Calls that need ``admin:*``."""

REFUSALS = (UnauthenticatedError, PermissionDeniedError)
AWAY = (RequestTimeoutError, ShardUnavailableError, OverloadedError)
"""What a call may get whoever makes it."""


def check(run: "Run") -> None:
    """All of it; nothing in a run without authentication."""
    history = run.history
    if not run.guarded:
        return
    faults = any(step.who < 0 for step in run.steps)
    late_us = CUT_OFF_US if faults else LATE_US
    apart_us = CLOCK_US * history.clock_steps + HOSTS_CLOCK_US * history.clocks_differ
    new_us = late_us
    if faults and run.options.hosts is not None:
        # A router has new keys from the leader of shard 0. Another host may have to take that over first; refusals are safe meanwhile.
        new_us += run.options.hosts.settles_us
    for call in history.calls:
        life = history.keys.get(call.client)
        if life is not None:
            _check_guest(history, call, _Rights(life, late_us, apart_us, new_us))
        else:
            for error in _errors(call):
                if isinstance(error, REFUSALS):
                    history.fail("keys", f"{_shown(call)} may do everything, and was refused: {error}")
    _check_effects(history, late_us, apart_us)
    pushed_late_us = late_us + (run.options.shard_settings.consumer_timeout_ms * 1000 if faults else 0)
    _check_deliveries(history, pushed_late_us, apart_us)
    for peer in run.peers:
        if peer.api_key != ADMIN:
            _check_stranger(history, peer)


class _Rights:
    """What a key allowed when, as far as it can be known from outside."""

    def __init__(self, life: KeyLife, late_us: int, apart_us: int, new_us: int = 0) -> None:
        """``new_us``: how long not everybody may know what the key allows since a moment."""
        self._life = life
        self._late_us = late_us
        self._apart_us = apart_us
        self._new_us = new_us

    def dead(self, at_us: int) -> bool:
        """Whether the key had ended for certain, and everybody must have known."""
        life = self._life
        over = life.expires_us is not None and at_us > life.expires_us + self._late_us + self._apart_us
        return over or (life.end_confirmed_us is not None and at_us > life.end_confirmed_us + self._late_us)

    def new(self, at_us: int) -> bool:
        """Whether perhaps not everybody knew the key yet."""
        return at_us <= self._life.made_us + self._new_us + REMEMBERED_US

    def lives(self, at_us: int) -> bool:
        """Whether the key had not ended for certain."""
        life = self._life
        over = life.expires_us is not None and at_us > life.expires_us - self._apart_us - SLACK_US
        return not over and (life.end_began_us is None or at_us < life.end_began_us)

    def may(self, kind: str, queue: str, until_us: int) -> bool:
        """Whether the key perhaps had a permission before a moment."""
        granted = [text for text, call in self._life.grants if call.started_us <= until_us]
        return _allow([*self._life.allow, *granted], kind, queue)

    def must(self, kind: str, queue: str, since_us: int) -> bool:
        """Whether the key had a permission for certain from a moment on, and everybody must have known."""
        life = self._life
        granted = [
            text
            for text, call in life.grants
            if call.ok and call.ended_us is not None and call.ended_us + self._new_us < since_us
        ]
        made = [] if self.new(since_us) else life.allow
        return _allow([*made, *granted], kind, queue)


def _allow(permissions: list[str], kind: str, queue: str) -> bool:
    for permission in permissions:
        of_kind, _, pattern = permission.partition(":")
        if kind in (of_kind, "any") and (queue.startswith(pattern[:-1]) if pattern.endswith("*") else queue == pattern):
            return True
    return False


def _errors(call: Done) -> list[FilaError]:
    """What a call raised, for each of its messages."""
    if isinstance(call.error, BatchError):
        return [result for result in call.error.results if isinstance(result, FilaError)]
    return [call.error] if isinstance(call.error, FilaError) else []


def _check_guest(history: History, call: Done, rights: _Rights) -> None:
    """Compare how a call ended with what its key allowed."""
    kind = "admin" if call.kind in CLUSTER else NEEDS.get(call.kind)
    queue = "*" if call.kind in CLUSTER else call.queue
    if kind is None or call.ended_us is None or call.ended_us >= history.audit_us:
        return
    if call.kind in SETTLING and history.queues.get(call.queue, {}).get("delivery") == "at_most_once":
        return  # decided by the client itself
    dead, errors = rights.dead(call.started_us), _errors(call)
    may = not dead and rights.may(kind, queue, call.ended_us)
    if may:
        must = rights.lives(call.ended_us) and rights.must(kind, queue, call.started_us)
        if must and any(isinstance(error, REFUSALS) for error in errors):
            history.fail("keys", f"{_shown(call)} has the right to do it, and was refused: {errors[0]}")
        return
    if call.ok:
        history.fail("keys", f"{_shown(call)} was done without the right to it")
    if call.kind in SETTLING:
        return  # the client may know by itself that a lease is over
    right: tuple[type[FilaError], ...] = (PermissionDeniedError,)
    if dead:
        right = (UnauthenticatedError,)
    elif rights.new(call.started_us) or not rights.lives(call.ended_us):
        right = REFUSALS
    for error in errors:
        if not isinstance(error, (*right, *AWAY)):
            history.fail("keys", f"{_shown(call)} has no right to it, and got {error!r} instead of {right[0].code}")


def _check_effects(history: History, late_us: int, apart_us: int) -> None:
    """No message is given out that was sent without the right to it."""
    given = {grant.token for grant in history.grants}
    for sent in history.sent.values():
        life = history.keys.get(sent.call.client)
        if life is None or sent.token not in given or NEEDS.get(sent.call.kind) != "produce":
            continue
        rights = _Rights(life, late_us, apart_us)
        until_us = 1 << 60 if sent.call.ended_us is None else sent.call.ended_us
        if rights.dead(sent.call.started_us) or not rights.may("produce", sent.queue, until_us):
            history.fail("keys", f"{_shown(sent.call)} had no right to it, and {sent.token} is given out")


def _check_deliveries(history: History, late_us: int, apart_us: int) -> None:
    """Nothing comes to a guest whose key has no right to it, or has ended."""
    guests = {process.identity: process.name for process in history.clients if process.name in history.keys}
    for grant in history.grants:
        name = guests.get(grant.client)
        if name is None or grant.arrived_us is None:
            continue
        rights = _Rights(history.keys[name], late_us, apart_us)
        if rights.dead(grant.arrived_us) or not rights.may("consume", grant.queue, grant.arrived_us):
            history.fail(
                "keys", f"{grant.token} of {grant.queue} came to {name} at {grant.arrived_us / 1e6:.6f} without a right"
            )


def _check_stranger(history: History, peer: RawPeer) -> None:
    """Whoever has no key hears of nothing but that."""
    allowed = {error.code for error in (UnauthenticatedError, InvalidFrameError, UnsupportedVersionError, OverloadedError)}
    for parts in peer.heard:
        header = unpack_header(parts[0][:HEADER_BYTES])
        if header.opcode == DELIVERY and not header.flags & REPLY:
            history.fail("keys", f"{peer.name} has no key, and got a delivery")
        elif header.flags & REPLY:
            fault = decode_body(Fault, parts[-1]) if header.flags & ERROR else None
            if fault is None or not (fault.code in allowed or fault.details.get("greet")):  # a greeting is asked of all
                history.fail("keys", f"{peer.name} has no key, and got {fault or 'an answer'} to opcode {header.opcode}")


def _shown(call: Done) -> str:
    return f"#{call.number} {call.kind} {call.queue} of {call.client} at {call.started_us / 1e6:.6f}"

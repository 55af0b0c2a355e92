"""The calls of a client that are not done: their answers, deadlines and retries, and the bound of their memory.

A call takes one of the ways of the :mod:`connection`; the rules are the same on each way. The fate of a call when

==========================  ==============================================================================================
the broker refuses          retried with backoff until its deadline, if the error says that no work was begun
its worker dies             retried if repeating it is harmless, else surfaced: it may or may not have been done
the link drops              the same; frames that were not sent yet wait for the next Welcome
no answer comes in time     RequestTimeoutError, a few milliseconds late at most
==========================  ==============================================================================================

Deadlines cost nothing per call: ``due_at`` is a lower bound of all of them, and the calls are searched only when it is
reached. With equal timeouts that is about once per timeout, however many calls were made.
"""

import math
from collections.abc import Callable, Iterator
from copy import copy
from random import Random
from typing import TYPE_CHECKING

from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.codec import decode_body, from_fault
from fila_proto_zmq.commands import CancelReceive, Extend, Fault, Goodbye, Heartbeat, Settle, Subscribe, Unsubscribe
from fila_proto_zmq.errors import (
    FilaError,
    InvalidFrameError,
    OverloadedError,
    PartitionedError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.frames import ERROR, Header, check_version

if TYPE_CHECKING:
    from fila_cluster.client.requests.connection import BrokerConnection
    from fila_cluster.client.requests.routes import Way

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
OVERLOADED_GROWTH = 2.0
AWAY_GROWTH = 1.25
"""A shard without a worker comes back by itself in a second or so. Calls that wait for it are sent again at the latest a
quarter of the outage later. Doubled pauses would make an outage half as long again for its clients."""
SWEEP_S_MIN = 0.005
"""Calls are searched at most this often; a timeout may come this late."""
KEPT_BYTES_MAX = 256 * 1024 * 1024
"""The bound of what a client keeps for its broker: unanswered calls, and frames that may lie in the socket's pipe. The broker
itself takes no more than half of it at a time."""
REFUSED_RETRY_S = 0.1
"""When to try again a call for which the client itself had no room."""

_RELIEVING = (Settle, Extend, Subscribe, Unsubscribe, Heartbeat, Goodbye, CancelReceive)
"""Calls that end calls and leases have room where others have none."""


class OpenCalls:
    """The calls that were started and are not done, by their request numbers.

    ``by_request`` are the calls, ``requests`` is the last number that was given to one. ``now`` is kept up to date by the session. ``due_at`` is the time of the next :meth:`tick`, or an earlier one.
    ``farewell`` is set when the client has taken leave: later calls end with it, because no client would settle what the
    broker leases to them.
    """

    def __init__(self, connection: "BrokerConnection", random: Random, kept_bytes_max: int) -> None:
        self.now = 0.0
        self.due_at = math.inf
        self.farewell: FilaError | None = None
        self._connection = connection
        self._random = random
        self.by_request: dict[int, PendingCall] = {}
        self._bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self.requests = 0
        self.judge: Callable[[str, PartitionedError], FilaError] = lambda _, error: error
        """Returns the error to take for a refusal that names partitions."""

    def __iter__(self) -> Iterator[PendingCall]:
        """Iterate over the calls of this moment; their ends may end or start others meanwhile."""
        return iter(list(self.by_request.values()))

    def get(self, request: int) -> PendingCall | None:
        """Return the call with this request number; None if it is done."""
        return self.by_request.get(request)

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept for the broker: calls, and frames that may lie in the socket's pipe."""
        return self._bytes + self._connection.pipe_bytes

    # --- begin and end ------------------------------------------------------------------------------------------------

    def start(self, call: PendingCall) -> PendingCall:
        """Send a call, or hold it back until the broker has answered the greeting."""
        connection = self._connection
        # A goodbye still has to reach the broker after the farewell is set.
        refusal = connection.admission_error() or (None if isinstance(call.command, Goodbye) else self.farewell)
        if refusal is not None:
            call.finish(error=copy(refusal))
            return call
        self.add(call)
        room = self._kept_bytes_max * (2 if isinstance(call.command, _RELIEVING) else 1)
        if self._bytes + connection.pipe_bytes > room:
            self.finish(call, error=self._no_room(call))
            return call
        if call.key:
            call.shard = connection.routes.shard(call.key)
        connection.dispatch(call)
        return call

    def add(self, call: PendingCall) -> PendingCall:
        """Give a call its request number and its frames."""
        self.requests += 1
        self.keep(call, self.requests)
        return call

    def keep(self, call: PendingCall, request: int) -> None:
        """Give a call this request number and its frames."""
        call.request = request
        call.encode()
        self.by_request[request] = call
        self._bytes += call.size_bytes
        self.note(call.deadline)

    def finish(self, call: PendingCall, value: object = None, error: FilaError | None = None) -> None:
        """Complete a call."""
        self.remove(call)
        call.finish(value, error)

    def remove(self, call: PendingCall) -> None:
        """Drop a call without completing it. If it was not sent yet, it is not sent."""
        if self.by_request.pop(call.request, None) is not None:
            self._bytes -= call.size_bytes
            if call.under_way:
                self._connection.over(call)
            elif call.way is not None and call.way.held:
                call.way.held.pop(call.request, None)

    def forget(self, call: PendingCall) -> None:
        """Stop waiting for a call's answer. If it was not sent yet, it is not sent."""
        self.finish(call, error=RequestTimeoutError(f"{call} was given up by its caller"))

    def fail_all(self, error: FilaError) -> None:
        """End every call."""
        for way in self._connection.routes.ways:
            way.held.clear()
        calls, self.by_request = self.by_request, {}
        self._bytes = 0
        for call in calls.values():
            if call.under_way:
                self._connection.routes.over(call)
            call.finish(error=copy(error))  # each one is raised in another place

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, header: Header, body: bytes | memoryview, way: "Way") -> bool:
        """Take in a reply that came on ``way``; False if no call waits for it (any more)."""
        call = self.by_request.get(header.request)
        if call is None:
            return False
        if call.way is not way:  # it was sent again on another way, and the reply there has the same content
            return True
        # The pipe keeps its order: this answer shows that all frames up to this call's have left it.
        self._connection.note_read(way, call.place)
        try:
            if not header.flags & ERROR:
                check_version(header)
                self.finish(call, decode_body(call.command.reply, body))
                return True
            error = from_fault(decode_body(Fault, body))
            if isinstance(error, PartitionedError):
                error = self.judge(call.key, error)
        except (InvalidFrameError, UnsupportedVersionError) as failure:
            error = failure
        self._refused(call, error)
        return True

    def _refused(self, call: PendingCall, error: FilaError) -> None:
        """Send a refused call again, later or on another way, or end it."""
        connection = self._connection
        if error.details.get("greet") is True and connection.welcome is not None:  # the broker has forgotten this session
            connection.greet()
        if call.under_way:
            connection.over(call)
        elif call.way is not None:  # an earlier attempt is answered, and the call waits to be sent again
            call.way.held.pop(call.request, None)
        if error.details.get("moved") is True and call.shard is not None and not call.done:
            connection.replace(call, call.shard)
            return
        delay_s = backoff_s(error, call.attempts, self._random)
        # An attempt that the broker may have begun makes the call's outcome unknown, whatever later attempts get.
        call.doubtful |= error.retryable and error.details.get("refused") is not True
        if not (_may_repeat(call, error) and self.now + delay_s < call.deadline):
            self.finish(call, error=error)
        elif not call.is_held:  # else an earlier attempt was refused, and it is about to be sent again
            call.attempts += 1
            call.retry_at = self.now + delay_s
            call.go_back(call.retry_at)
            self.note(call.retry_at)

    def take_back(self, way: "Way", unsent: set[int]) -> None:
        """Send the calls of a lost link again where that is safe; end the others. ``unsent``: ids of unsent frames."""
        for call in self:
            if call.way is not way or not call.under_way or call is way.greeting:
                continue
            never_left = id(call.frames) in unsent
            call.doubtful |= not never_left
            if call.persistent and (call.repeatable or never_left):
                self._connection.over(call)
                call.lose_link(self.now)
                self.note(call.ends_at)
                self._connection.dispatch(call)
            else:
                self.finish(call, error=self._lost(call))

    # --- time ---------------------------------------------------------------------------------------------------------

    def note(self, when: float) -> None:
        """Look at the calls at this time at the latest."""
        self.due_at = min(self.due_at, when)

    def hasten(self, call: PendingCall, deadline: float) -> None:
        """Move the deadline of a call forward."""
        call.deadline = min(call.deadline, deadline)
        self.note(call.deadline)

    def tick(self) -> None:
        """Expire and retry calls that are due, and give up ways that take too long to open; at ``due_at``."""
        now = self.now
        self.due_at = math.inf
        self._connection.tick()
        for call in self:
            if call.done:  # another call's end has ended it
                continue
            if call.ends_at <= now:
                self.finish(call, error=self._timed_out(call))
                continue
            if call.retry_at is not None and call.retry_at <= now:
                call.retry_at = None
                self._connection.dispatch(call)
            self.note(call.ends_at if call.retry_at is None else min(call.ends_at, call.retry_at))
        self.note(self._connection.routes.due_at)
        self.due_at = max(self.due_at, now + SWEEP_S_MIN)

    def recount(self) -> None:
        """Count anew what the calls add up to; an interrupt may have come between a change and its count."""
        self._bytes = sum(call.size_bytes for call in self.by_request.values())

    def check(self) -> None:
        """Check the invariants, for tests."""
        calls = self.by_request.values()
        assert self._bytes == sum(call.size_bytes for call in calls)
        assert not any(call.done for call in calls)
        for call in calls:
            held = call.is_held
            assert held + call.under_way + (call.retry_at is not None) == 1, (str(call), held, call.under_way, call.retry_at)
        self._connection.check()

    def _no_room(self, call: PendingCall) -> FilaError:
        endpoint = self._connection.endpoint
        return OverloadedError(
            f"{call} was not sent: this client keeps {self.kept_bytes} bytes for {endpoint} already, which has not answered; "
            "try again when it has, and wait for answers before asking for more",
            retry_after=REFUSED_RETRY_S,
            details={"refused": True, "kept_bytes": self.kept_bytes, "kept_bytes_max": self._kept_bytes_max},
        )

    def _lost(self, call: PendingCall) -> FilaError:
        endpoint = self._connection.endpoint
        return ShardUnavailableError(
            f"the connection to {endpoint} was lost during {call}: it may or may not have been done; "
            "the client reconnects by itself, repeat the call if doing it twice is harmless",
            details={"endpoint": endpoint},
        )

    def _timed_out(self, call: PendingCall) -> FilaError:
        connection = self._connection
        endpoint = connection.endpoint
        if connection.welcome is not None and not call.may_be_done:
            text = f"{endpoint} took nothing in for {call.timeout:g} s: {call} was not sent"
        elif connection.welcome is not None:
            text = f"no answer from {endpoint} to {call} within {call.timeout:g} s: whether it was done is unknown"
        elif connection.was_open:
            text = f"the connection to {endpoint} is lost and did not come back within the {call.patience:g} s of {call}"
        else:
            text = f"no broker answers at {endpoint} ({call}, {call.timeout:g} s); is `fila-cluster up` running there?"
        return RequestTimeoutError(text, details={"endpoint": endpoint, "timeout": call.timeout})


def _may_repeat(call: PendingCall, error: FilaError) -> bool:
    """Return whether a call that got this error may be sent again."""
    if not call.persistent or not isinstance(error, (ShardUnavailableError, OverloadedError)):
        return False
    if call.is_answered_by(error):
        return False
    refused_before_any_work = error.details.get("refused") is True
    return refused_before_any_work or (isinstance(error, ShardUnavailableError) and call.repeatable)


def backoff_s(error: FilaError, attempts: int, random: Random) -> float:
    """Return how long to wait after a refusal, with so many refusals before it."""
    growth = AWAY_GROWTH if isinstance(error, ShardUnavailableError) else OVERLOADED_GROWTH
    ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * growth**attempts)
    return max(ceiling_s * random.uniform(0.5, 1.0), error.retry_after or 0.0)

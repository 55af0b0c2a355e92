"""Requests and their answers over one connection: correlation, deadlines, retries, and the greeting.

States: *greeting* (Hello is under way, calls are held back) and *open* (Welcome came); each lost link leads back to the
first. What happens to a call when

==========================  ==============================================================================================
the broker refuses          retried with backoff until its deadline, if the error says that no work was begun
its worker dies             retried if repeating it is harmless, else surfaced: it may or may not have been done
the link drops              the same; frames that were not sent yet wait for the next Welcome
no answer comes in time     RequestTimeoutError, a few milliseconds late at most
==========================  ==============================================================================================

The memory that a client keeps for the broker is bounded in bytes. Calls wait in order in ``_held`` until they may go: while
greeting, and while there is more than a little in the socket's pipe. So a frame that a stalled broker has not read ends with
its call, instead of being carried out after its caller has given up; only frames in the pipe can't be taken back. The pipe is
a queue, so an answer to one frame shows that all frames before it have left; where no answer would come soon, the client
sends a *probe*: a question that the router answers by itself.

Deadlines cost nothing per call: ``due_at`` is a lower bound of all of them, and the calls are searched only when it is
reached. With equal timeouts that is about once per timeout, however many calls were made.
"""

import math
from collections import deque
from collections.abc import Callable
from copy import copy
from random import Random

from fila_cluster.client.protocol.call import Call
from fila_proto_zmq.clients import TAG_BYTES
from fila_proto_zmq.codec import decode_body, from_fault
from fila_proto_zmq.commands import (
    CancelReceive,
    Extend,
    Fault,
    GetClusterStatus,
    Goodbye,
    Heartbeat,
    Hello,
    Settle,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidFrameError,
    OverloadedError,
    PayloadTooLargeError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.frames import ERROR, VERSIONS, Header, check_version, pack_header
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX

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
PIPE_BYTES_MAX = 8 * 1024 * 1024
"""Frames in the socket's pipe, or one larger one: many times as much as keeps a connection busy until the next answer."""
REFUSED_RETRY_S = 0.1
"""When to try again a call for which the client itself had no room."""

_RELIEVING = (Settle, Extend, Subscribe, Unsubscribe, Heartbeat, Goodbye, CancelReceive)
"""Calls that end calls and leases have room where others have none."""


class Connection:
    """The calls of one client. ``outgoing`` holds the frames to send, in order; the shell empties it.

    Every call that was started is in ``_calls`` until it is done, and in ``_held`` as long as it may not be sent. ``_pipe``
    has the sizes of the frames that may lie in the socket's pipe, in order. ``welcome`` is None while greeting. ``farewell``
    is set when the client has taken leave: later calls end with it, because no client would settle what the broker leases to
    them.
    """

    def __init__(
        self,
        endpoint: str,
        client_version: str,
        on_open: Callable[[Welcome], None],
        random: Random,
        *,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        pipe_bytes_max: int = PIPE_BYTES_MAX,
    ) -> None:
        self.endpoint = endpoint
        self.outgoing: deque[list[bytes]] = deque()
        self.welcome: Welcome | None = None
        self.farewell: FilaError | None = None
        self.due_at = math.inf
        self._client_version = client_version
        self._on_open = on_open
        self._random = random
        self._calls: dict[int, Call] = {}
        self._held: dict[int, Call] = {}
        self._pipe: deque[int] = deque()
        self._pipe_bytes = 0
        self._read = 0
        """Frames that have left the pipe: the place of the first in ``_pipe``."""
        self._pipe_bytes_max = pipe_bytes_max
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self._probe: Call | None = None
        self._greeting: Call | None = None
        self._refusal: FilaError | None = None
        self._was_open = False
        self._frame_bytes_max: float = math.inf
        self._requests = 0
        self._session = b""
        """The secret that identifies this client after a reconnect."""
        self._tag = 0

    def greet(self, now: float) -> None:
        """Send Hello: first of all, and again on every new link."""
        self.welcome = None
        if self._greeting is not None:
            self._remove(self._greeting)
        hello = Hello(list(VERSIONS), self._client_version, self._session)
        self._greeting = self._register(Call("", hello, now, math.inf, then=self._greeted))
        self._send(self._greeting)

    def start(self, call: Call) -> Call:
        """Send a call, or hold it back until the broker has answered the greeting."""
        refusal = self.farewell or self._refusal
        # A goodbye still has to reach the broker after the farewell is set.
        if refusal is not None and not isinstance(call.command, Goodbye):
            call.finish(error=copy(refusal))
            return call
        self._register(call)
        if self._kept_bytes + self._pipe_bytes > self._kept_bytes_max and not self._makes_room(call):
            self._finish(call, error=self._no_room(call))
            return call
        self._send_or_hold(call)
        return call

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept for the broker: calls, and frames that may lie in the socket's pipe."""
        return self._kept_bytes + self._pipe_bytes

    def forget(self, call: Call) -> None:
        """Stop waiting for a call's answer. If it was not sent yet, it is not sent."""
        self._remove(call)
        call.finish(error=RequestTimeoutError(f"{call} was given up by its caller"))

    def hasten(self, call: Call, deadline: float) -> None:
        """Move the deadline of a call forward."""
        call.deadline = min(call.deadline, deadline)
        self._note(call.deadline)

    def answer(self, header: Header, body: bytes, now: float) -> bool:
        """Take in a reply; False if no call waits for it (any more)."""
        call = self._calls.get(header.request)
        if call is None:
            return False
        # The pipe keeps its order: this answer shows that all frames up to this call's have left it.
        if call.place >= self._read:
            self._note_read(call.place)
        try:
            if not header.flags & ERROR:
                check_version(header)
                self._finish(call, decode_body(call.command.reply, body))
                return True
            error = from_fault(decode_body(Fault, body))
        except (InvalidFrameError, UnsupportedVersionError) as failure:
            error = failure
        self._refused(call, error, now)
        return True

    def disconnected(self, now: float) -> None:
        """Note the loss of the link and of everything in flight on it; frames in ``outgoing`` are not lost."""
        self._refusal = None
        unsent = set(map(id, self.outgoing))
        while self.outgoing:
            self.outgoing.pop()
            self._pipe_bytes -= self._pipe.pop()
        self.greet(now)
        for call in list(self._calls.values()):
            if call is self._greeting or not call.sent:
                continue
            never_left = id(call.frames) in unsent
            call.doubtful |= not never_left
            if call.persistent and (call.repeatable or never_left):
                call.lose_link(now)
                self._held[call.request] = call
                self._note(call.ends_at)
            else:
                self._finish(call, error=self._lost(call))

    def tick(self, now: float) -> None:
        """Expire and retry calls that are due."""
        if now < self.due_at:
            return
        self.due_at = math.inf
        for call in list(self._calls.values()):
            if call.done:  # another call's end has ended it
                continue
            if call.ends_at <= now:
                self._finish(call, error=self._timed_out(call))
                continue
            if call.retry_at is not None and call.retry_at <= now:
                call.retry_at = None
                self._send_or_hold(call)
            self._note(call.ends_at if call.retry_at is None else min(call.ends_at, call.retry_at))
        self.due_at = max(self.due_at, now + SWEEP_S_MIN)

    def fail_all(self, error: FilaError) -> None:
        """End every call."""
        calls, self._calls = self._calls, {}
        self._held.clear()
        self._kept_bytes = 0
        for call in calls.values():
            call.finish(error=copy(error))  # each one is raised in another place

    # --- inside -------------------------------------------------------------------------------------------------------

    def _register(self, call: Call) -> Call:
        self._requests += 1
        call.request = self._requests
        call.encode()
        self._calls[call.request] = call
        self._kept_bytes += call.size_bytes
        self._note(call.deadline)
        return call

    def _remove(self, call: Call) -> None:
        if self._calls.pop(call.request, None) is not None:
            self._kept_bytes -= call.size_bytes
            if self._held:
                self._held.pop(call.request, None)

    def _note(self, when: float) -> None:
        self.due_at = min(self.due_at, when)

    def _send_or_hold(self, call: Call) -> None:
        if (self.welcome is not None and not self._held and self._fits(call)) or call is self._greeting:
            self._send(call)
        else:
            self._held[call.request] = call
            self._ask_for_room()

    def _fits(self, call: Call) -> bool:
        return not self._pipe_bytes or self._pipe_bytes + call.size_bytes <= self._pipe_bytes_max

    def _send(self, call: Call) -> None:
        if len(call.frames[2]) > self._frame_bytes_max:
            self._finish(call, error=self._too_large(call))
            return
        if call is not self._greeting:
            call.frames[0] = pack_header(call.command.opcode, call.request, epoch=self._tag)
        call.sent, call.away_until = True, math.inf
        self.outgoing.append(call.frames)
        call.place = self._read + len(self._pipe)
        self._pipe.append(call.size_bytes)
        self._pipe_bytes += call.size_bytes

    def _note_read(self, place: int) -> None:
        """Note that the frame in this place, and all before it, have left the pipe."""
        while self._read <= place:
            self._pipe_bytes -= self._pipe.popleft()
            self._read += 1
        if self._held and self.welcome is not None:
            self._send_held()

    def _send_held(self) -> None:
        """Send calls for which there is room, in order."""
        while self._held:
            call = next(iter(self._held.values()))
            if not self._fits(call):
                self._ask_for_room()
                return
            del self._held[call.request]
            self._send(call)

    def _ask_for_room(self) -> None:
        if self.welcome is not None and self._probe is None:
            self._probe = Call("", GetClusterStatus(), 0.0, math.inf, then=self._probed, persistent=False)
            self._send(self._register(self._probe))

    def _probed(self, probe: Call) -> None:
        self._probe = None
        if self.welcome is not None:
            self._send_held()

    def _makes_room(self, call: Call) -> bool:
        return isinstance(call.command, _RELIEVING) and self.kept_bytes <= 2 * self._kept_bytes_max

    def _finish(self, call: Call, value: object = None, error: FilaError | None = None) -> None:
        self._remove(call)
        call.finish(value, error)

    def _greeted(self, greeting: Call) -> None:
        if greeting is not self._greeting:
            return
        self._greeting = None
        if greeting.error is not None:
            self._refusal = greeting.error
            self.fail_all(greeting.error)
            return
        welcome: Welcome = greeting.value
        self.welcome = welcome
        self._was_open = True
        self._session, self._tag = welcome.session, int.from_bytes(welcome.session[:TAG_BYTES], "big")
        if welcome.max_payload_bytes:
            self._frame_bytes_max = welcome.max_payload_bytes + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES
        self._send_held()
        self._on_open(welcome)

    def _refused(self, call: Call, error: FilaError, now: float) -> None:
        if error.details.get("greet") is True and self.welcome is not None:  # the broker has forgotten this session
            self.greet(now)
        delay_s = self._backoff_s(call, error)
        # An attempt that the broker may have begun makes the call's outcome unknown, whatever later attempts get.
        call.doubtful |= error.retryable and error.details.get("refused") is not True
        if self._may_repeat(call, error) and now + delay_s < call.deadline:
            call.attempts += 1
            call.go_back(now + delay_s)
            call.retry_at = now + delay_s
            self._note(call.retry_at)
        else:
            self._finish(call, error=error)

    def _may_repeat(self, call: Call, error: FilaError) -> bool:
        if not call.persistent or not isinstance(error, (ShardUnavailableError, OverloadedError)):
            return False
        if call.is_answered_by(error):
            return False
        refused_before_any_work = error.details.get("refused") is True
        return refused_before_any_work or (isinstance(error, ShardUnavailableError) and call.repeatable)

    def _backoff_s(self, call: Call, error: FilaError) -> float:
        growth = AWAY_GROWTH if isinstance(error, ShardUnavailableError) else OVERLOADED_GROWTH
        ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * growth**call.attempts)
        jittered_s = ceiling_s * self._random.uniform(0.5, 1.0)
        return max(jittered_s, error.retry_after or 0.0)

    def _lost(self, call: Call) -> FilaError:
        return ShardUnavailableError(
            f"the connection to {self.endpoint} was lost during {call}: it may or may not have been done; "
            "the client reconnects by itself, repeat the call if doing it twice is harmless",
            details={"endpoint": self.endpoint},
        )

    def _no_room(self, call: Call) -> FilaError:
        return OverloadedError(
            f"{call} was not sent: this client keeps {self.kept_bytes} bytes for {self.endpoint} already, which has not answered; "
            "try again when it has, and wait for answers before asking for more",
            retry_after=REFUSED_RETRY_S,
            details={"refused": True, "kept_bytes": self.kept_bytes, "kept_bytes_max": self._kept_bytes_max},
        )

    def _too_large(self, call: Call) -> FilaError:
        """Return the error for a larger frame than the broker reads: it would cut the connection instead."""
        accepted = 0 if self.welcome is None else self.welcome.max_payload_bytes
        return PayloadTooLargeError(
            f"a message of {len(call.frames[2])} bytes: this broker accepts payloads up to {accepted} "
            "([limits] max_payload_bytes); store it elsewhere and send a reference",
            details={"max_payload_bytes": accepted},
        )

    def _timed_out(self, call: Call) -> FilaError:
        details = {"endpoint": self.endpoint, "timeout": call.timeout}
        if self.welcome is not None and not call.may_be_done:
            text = f"{self.endpoint} took nothing in for {call.timeout:g} s: {call} was not sent"
        elif self.welcome is not None:
            text = f"no answer from {self.endpoint} to {call} within {call.timeout:g} s: whether it was done is unknown"
        elif self._was_open:
            text = f"the connection to {self.endpoint} is lost and did not come back within the {call.patience:g} s of {call}"
        else:
            text = f"no broker answers at {self.endpoint} ({call}, {call.timeout:g} s); is `fila-cluster up` running there?"
        return RequestTimeoutError(text, details=details)

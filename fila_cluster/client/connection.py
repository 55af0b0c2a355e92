"""Requests and their answers over one connection: correlation, deadlines, retries, and the greeting.

States: *greeting* (Hello is under way, calls are held back), *open* (Welcome came), and for ever between the two as the
link drops and returns. What happens to a call when

==========================  ==============================================================================================
the broker refuses          retried with backoff until its deadline, if the error says that no work was begun
its worker dies             retried if repeating it is harmless, else surfaced: it may or may not have been done
the link drops              the same, and whatever was not sent yet waits for the next Welcome
no answer comes in time     RequestTimeoutError, a few milliseconds late at most
==========================  ==============================================================================================

Deadlines cost nothing per call: ``due_at`` is a lower bound of all of them, and only when it is reached are the calls
looked through. With equal timeouts that is about once per timeout, however many calls were made.
"""

import math
from collections import deque
from collections.abc import Callable
from copy import copy
from random import Random

from fila_cluster.client.call import Call
from fila_proto_zmq.clients import TAG_BYTES
from fila_proto_zmq.codec import decode_body, encode_command, from_fault
from fila_proto_zmq.commands import Fault, Goodbye, Hello, Welcome
from fila_proto_zmq.errors import (
    FilaError,
    InvalidFrameError,
    OverloadedError,
    PayloadTooLargeError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.frames import ERROR, VERSIONS, Header, check_version
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
SWEEP_S_MIN = 0.005
"""Calls are looked through at most this often; a timeout may come that late."""


class Connection:
    """The calls of one client. ``outgoing`` holds the frames to send, in order; the shell empties it.

    Every call that was started is in ``_calls`` until it is done. ``welcome`` is None while greeting. ``farewell`` is set when the
    client has taken leave: whatever it would start then is answered with it, because the broker would lease to nobody.
    """

    def __init__(self, endpoint: str, client_version: str, on_open: Callable[[Welcome], None], random: Random) -> None:
        self.endpoint = endpoint
        self.outgoing: deque[list[bytes]] = deque()
        self.welcome: Welcome | None = None
        self.farewell: FilaError | None = None
        self.due_at = math.inf
        self._client_version = client_version
        self._on_open = on_open
        self._random = random
        self._calls: dict[int, Call] = {}
        self._held: list[Call] = []
        self._greeting: Call | None = None
        self._refusal: FilaError | None = None
        self._was_open = False
        self._frame_bytes_max: float = math.inf
        self._requests = 0
        self._session = b""
        """The secret that makes this client the same one after a reconnect."""
        self._tag = 0

    def greet(self, now: float) -> None:
        """Say Hello: first thing, and again on every new link."""
        self.welcome = None
        if self._greeting is not None:
            self._calls.pop(self._greeting.request, None)
        hello = Hello(list(VERSIONS), self._client_version, self._session)
        self._greeting = self._register(Call("", hello, now, math.inf, then=self._greeted))
        self._send(self._greeting)

    def start(self, call: Call) -> Call:
        """Send a call, or hold it back until the broker has answered the greeting."""
        refusal = self.farewell or self._refusal
        if refusal is not None and not isinstance(call.command, Goodbye):
            call.finish(error=copy(refusal))
            return call
        self._register(call)
        self._send_or_hold(call)
        return call

    def forget(self, call: Call) -> None:
        """Wait no longer for a call's answer. If it was not sent yet, it never will be."""
        self._calls.pop(call.request, None)
        call.finish(error=RequestTimeoutError(f"{call} was given up by its caller"))

    def hasten(self, call: Call, deadline: float) -> None:
        """Let a call end by then."""
        call.deadline = min(call.deadline, deadline)
        self._note(call.deadline)

    def answer(self, header: Header, body: bytes, now: float) -> bool:
        """Take in a reply; False if nobody waits for it (any more)."""
        call = self._calls.get(header.request)
        if call is None:
            return False
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
        """The link is gone, with everything that was in flight on it; what is still in ``outgoing`` was not."""
        self._refusal = None
        unsent = set(map(id, self.outgoing))
        self.outgoing.clear()
        self.greet(now)
        for call in list(self._calls.values()):
            if call is self._greeting or not call.sent:
                continue
            if call.persistent and (call.repeatable or id(call.frames) in unsent):
                call.sent = False
                self._held.append(call)
            else:
                self._finish(call, error=self._lost(call))

    def tick(self, now: float) -> None:
        """Expire and retry what is due."""
        if now < self.due_at:
            return
        self.due_at = math.inf
        for call in list(self._calls.values()):
            if call.done:  # the end of another one ended it
                continue
            if call.deadline <= now:
                self._finish(call, error=self._timed_out(call))
            elif call.retry_at is not None and call.retry_at <= now:
                call.retry_at = None
                self._send_or_hold(call)
            else:
                self._note(call.deadline if call.retry_at is None else min(call.deadline, call.retry_at))
        self.due_at = max(self.due_at, now + SWEEP_S_MIN)

    def fail_all(self, error: FilaError) -> None:
        """End every call."""
        calls, self._calls = self._calls, {}
        self._held.clear()
        for call in calls.values():
            call.finish(error=copy(error))  # each is raised in a place of its own

    # --- inside -------------------------------------------------------------------------------------------------------

    def _register(self, call: Call) -> Call:
        self._requests += 1
        call.request = self._requests
        self._calls[call.request] = call
        self._note(call.deadline)
        return call

    def _note(self, when: float) -> None:
        self.due_at = min(self.due_at, when)

    def _send_or_hold(self, call: Call) -> None:
        if self.welcome is None and call is not self._greeting:
            self._held.append(call)
        else:
            self._send(call)

    def _send(self, call: Call) -> None:
        if not call.frames:
            epoch = 0 if call is self._greeting else self._tag
            call.frames = encode_command(call.command, call.request, call.key, epoch)
            if len(call.frames[2]) > self._frame_bytes_max:
                self._finish(call, error=self._too_large(call))
                return
        call.sent = True
        self.outgoing.append(call.frames)

    def _finish(self, call: Call, value: object = None, error: FilaError | None = None) -> None:
        self._calls.pop(call.request, None)
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
        held, self._held = self._held, []
        for call in held:
            if not call.done:
                self._send(call)
        self._on_open(welcome)

    def _refused(self, call: Call, error: FilaError, now: float) -> None:
        if error.details.get("greet") is True and self.welcome is not None:  # the broker has forgotten this session
            self.greet(now)
        delay_s = self._backoff_s(call, error)
        if self._may_repeat(call, error) and now + delay_s < call.deadline:
            call.attempts += 1
            call.sent = False
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
        ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0**call.attempts)
        jittered_s = ceiling_s * self._random.uniform(0.5, 1.0)
        return max(jittered_s, error.retry_after or 0.0)

    def _lost(self, call: Call) -> FilaError:
        return ShardUnavailableError(
            f"the connection to {self.endpoint} was lost during {call}: it may or may not have been done; "
            "the client reconnects by itself, repeat the call if doing it twice is harmless",
            details={"endpoint": self.endpoint},
        )

    def _too_large(self, call: Call) -> FilaError:
        """What is larger than this is not even read by the broker: it cuts the connection instead."""
        accepted = 0 if self.welcome is None else self.welcome.max_payload_bytes
        return PayloadTooLargeError(
            f"a message of {len(call.frames[2])} bytes: this broker accepts payloads up to {accepted} "
            "([limits] max_payload_bytes); store it elsewhere and send a reference",
            details={"max_payload_bytes": accepted},
        )

    def _timed_out(self, call: Call) -> FilaError:
        details = {"endpoint": self.endpoint, "timeout": call.timeout}
        if self.welcome is not None:
            text = f"no answer from {self.endpoint} to {call} within {call.timeout:g} s: whether it was done is unknown"
        elif self._was_open:
            text = f"the connection to {self.endpoint} is lost and did not come back within the {call.timeout:g} s of {call}"
        else:
            text = f"no broker answers at {self.endpoint} ({call}, {call.timeout:g} s); is `fila-cluster up` running there?"
        return RequestTimeoutError(text, details=details)

"""Requests and their answers: correlation, deadlines, retries, and the greeting.

Calls go through the router or straight to a worker (:mod:`routes`); the rules are the same on each way. States of a way:
*greeting* (Hello is under way, calls are held back) and *open* (Welcome came); each lost link leads back to the first. What
happens to a call when

==========================  ==============================================================================================
the broker refuses          retried with backoff until its deadline, if the error says that no work was begun
its worker dies             retried if repeating it is harmless, else surfaced: it may or may not have been done
the link drops              the same; frames that were not sent yet wait for the next Welcome
no answer comes in time     RequestTimeoutError, a few milliseconds late at most
==========================  ==============================================================================================

The memory that a client keeps for the broker is bounded in bytes. Calls wait in order in a way's ``held`` until they may go: while
greeting, and while there is more than a little in the socket's pipe. So a frame that a stalled broker has not read ends with
its call, instead of being carried out after its caller has given up; only frames in the pipe can't be taken back. The pipe is
a queue, so an answer to one frame shows that all frames before it have left; where no answer would come soon, the client
sends a *probe*: a question that the other side answers at once.

Deadlines cost nothing per call: ``due_at`` is a lower bound of all of them, and the calls are searched only when it is
reached. With equal timeouts that is about once per timeout, however many calls were made.
"""

import math
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from random import Random

from fila_cluster.client.requests.call import Call
from fila_cluster.client.requests.routes import Routes
from fila_cluster.client.requests.way import DirectWay, State, Way
from fila_proto_zmq.clients import TAG_BYTES
from fila_proto_zmq.codec import decode_body, from_fault
from fila_proto_zmq.commands import (
    CancelReceive,
    DoorView,
    Extend,
    Fault,
    GetClusterStatus,
    GetPlacement,
    Goodbye,
    Heartbeat,
    Hello,
    Placement,
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
    UnauthenticatedError,
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
PLACEMENT_S = 5.0
"""How long to wait for the router to say where the shards are, before it is asked again."""
HANDSHAKES_MAX = 3
"""A router that ends during a handshake looks like one that refuses it; one that refuses does so again and again."""
GREET_AGAIN_S = 1.0
"""How long the refusal of a greeting holds. The next call after that greets again: its API key may be made since, or this router may
have been the last one of a cluster to hear of it."""
REFUSED_RETRY_S = 0.1
"""When to try again a call for which the client itself had no room."""

_RELIEVING = (Settle, Extend, Subscribe, Unsubscribe, Heartbeat, Goodbye, CancelReceive)
"""Calls that end calls and leases have room where others have none."""


class Connection:
    """The calls of one client. Each way's ``outgoing`` holds the frames to send there, in order; the shell empties it.

    Every call that was started is in ``_calls`` until it is done, and in its way's ``held`` as long as it may not be sent.
    ``welcome`` is None while greeting the router. ``farewell`` is set when the client has taken leave: later calls end with it,
    because no client would settle what the broker leases to them.
    """

    def __init__(
        self,
        endpoint: str,
        client_version: str,
        on_open: Callable[[Welcome], None],
        on_move: Callable[[int], None],
        random: Random,
        *,
        api_key: str = "",
        direct: bool = False,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        pipe_bytes_max: int = PIPE_BYTES_MAX,
    ) -> None:
        """``on_open`` follows each Welcome of a router; ``on_move(shard)`` when a shard's calls take another way than before."""
        self.endpoint = endpoint
        self.routes = Routes(on_move)
        self.router = self.routes.router
        self.outgoing: deque[list[bytes]] = self.router.outgoing
        self.welcome: Welcome | None = None
        self.farewell: FilaError | None = None
        self.due_at = math.inf
        self.now = 0.0
        self._api_key = api_key
        self._direct = direct
        self._client_version = client_version
        self._on_open = on_open
        self._random = random
        self._calls: dict[int, Call] = {}
        self._pipe_bytes = 0
        """The size of the frames in all pipes."""
        self._pipe_bytes_max = pipe_bytes_max
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self._asks_placement = False
        self._refusal: FilaError | None = None
        self._greet_again_at = math.inf
        """When the refusal ends, if a greeting was refused."""
        self._handshakes_failed = 0
        """In a row, and none succeeded since."""
        self._was_open = False
        self._frame_bytes_max: float = math.inf
        self._requests = 0
        self._session = b""
        """The secret that identifies this client after a reconnect."""
        self._tag = 0

    def greet(self, now: float) -> None:
        """Send Hello to the router: first of all, and again on every new link."""
        self.now = now
        self.welcome = None
        self.router.open = False
        hello = Hello(list(VERSIONS), self._client_version, self._session, self._direct, self._api_key)
        self._greet(self.router, hello, self._greeted)

    def _greet(self, way: Way, hello: Hello, then: Callable[[Call], None]) -> None:
        if way.greeting is not None:
            self._remove(way.greeting)
        call = way.greeting = Call("", hello, self.now, math.inf, then=then)
        call.way = way
        self._send(self._register(call), way)

    def start(self, call: Call) -> Call:
        """Send a call, or hold it back until the broker has answered the greeting."""
        # A goodbye still has to reach the broker after the farewell is set.
        refusal = self.knock() or (None if isinstance(call.command, Goodbye) else self.farewell)
        if refusal is not None:
            call.finish(error=copy(refusal))
            return call
        self._register(call)
        if self._kept_bytes + self._pipe_bytes > self._kept_bytes_max and not self._makes_room(call):
            self._finish(call, error=self._no_room(call))
            return call
        if call.key:
            call.shard = self.routes.shard(call.key)
        self._dispatch(call)
        return call

    @property
    def refusal(self) -> FilaError | None:
        """Why the broker does not let this client in, if so: every call ends with this error."""
        return self._refusal

    def knock(self) -> FilaError | None:
        """Return the refusal, if there is one. A greeting that was refused some time ago is sent again instead."""
        if self._refusal is not None and self.now >= self._greet_again_at:
            self._refusal, self._greet_again_at = None, math.inf
            self.greet(self.now)
        return self._refusal

    @property
    def reachable(self) -> bool:
        """Whether some way is open."""
        return self.welcome is not None or any(way.open for way in self.routes.ways)

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

    def answer(self, header: Header, body: bytes, now: float, way: Way) -> bool:
        """Take in a reply that came on ``way``; False if no call waits for it (any more)."""
        self.now = now
        call = self._calls.get(header.request)
        if call is None:
            return False
        if call.way is not way:  # it was sent again on another way, and the reply there has the same content
            return True
        # The pipe keeps its order: this answer shows that all frames up to this call's have left it.
        self._note_read(way, call.place)
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
        """Note the loss of the link to the router and of everything in flight on it; its outgoing frames are not lost."""
        if self._handshakes_failed < HANDSHAKES_MAX:
            self._refusal = None
        unsent = self.router.take_unsent()
        self._recount()
        self.greet(now)
        self._take_back(self.router, unsent, now)
        for call in [each for each in self._calls.values() if self._is_lost(each)]:
            self._dispatch(call)
        self.routes.left(self.router)

    def refused_link(self, why: str, *, final: bool) -> None:
        """Note that the server refused a connection before any frame could be sent. After some in a row it is not by chance.

        ``final``: the link does not try again by itself; there will be another link for later calls.
        """
        error = UnauthenticatedError(f"no connection to {self.endpoint}: {why}")
        self._handshakes_failed += 1
        if final:
            self.fail_all(error)
        elif self._handshakes_failed == HANDSHAKES_MAX:
            self._refusal, self._greet_again_at = error, math.inf
            self.fail_all(error)

    def lost(self, way: DirectWay, now: float) -> None:
        """Note the loss of a direct connection, or that none could be made. What was not sent goes another way."""
        self.now = now
        unsent = way.take_unsent()
        way.take_pipe()
        self._recount()
        if way.greeting is not None:
            self._remove(way.greeting)
            way.greeting = None
        if way.probe is not None:
            self._remove(way.probe)
            way.probe = None
        self.routes.closed(way, now)
        self._take_back(way, unsent, now)
        self._redirect(way)
        self.routes.left(way)

    def _take_back(self, way: Way, unsent: set[int], now: float) -> None:
        """Have the calls that were sent on a lost link sent again where that is safe; end the others."""
        for call in list(self._calls.values()):
            if call.way is not way or not call.under_way or call is way.greeting:
                continue
            never_left = id(call.frames) in unsent
            call.doubtful |= not never_left
            if call.persistent and (call.repeatable or never_left):
                self._settle(call)
                call.lose_link(now)
                self._note(call.ends_at)
                self._dispatch(call)
            else:
                self._finish(call, error=self._lost(call))

    # --- direct ways --------------------------------------------------------------------------------------------------

    def placed(self, placement: Placement) -> None:
        """Follow the router's placement of the shards."""
        if self.welcome is not None and self._direct and placement.doors is not None:
            self._place(placement.doors, self.welcome.shards)

    def at_door(self, way: DirectWay, door: bytes, now: float) -> None:
        """Note what the plate of a direct connection says."""
        self.now = now
        if not door:
            self._retire(way)
        elif door == way.door and way.state == State.OPENING:
            hello = Hello(list(VERSIONS), self._client_version, self._session, api_key=self._api_key)
            self._greet(way, hello, partial(self._admitted, way))
        else:
            self.lost(way, now)

    def _admitted(self, way: DirectWay, greeting: Call) -> None:
        if greeting is not way.greeting:
            return
        way.greeting = None
        if greeting.error is not None:
            self.lost(way, self.now)
            return
        if way.state != State.OPENING:  # it was retired in between
            return
        self.routes.opened(way)
        self._send_held(way)

    def _place(self, doors: list[DoorView], shards: int) -> None:
        for way in self.routes.placed(doors, shards):
            self._retire(way)
        self._recount()  # also of the ways that were gone while others were retired

    def _retire(self, way: DirectWay) -> None:
        self.routes.retire(way, self.now)
        if not way.calls:  # nothing of it will be answered: its calls were given up
            way.take_unsent()
            way.take_pipe()
            self._recount()
        self._note(self.routes.due_at)
        self._redirect(way)

    def _redirect(self, way: Way) -> None:
        """Find other ways for the calls that were not sent yet."""
        held, way.held = list(way.held.values()), {}
        for call in held:
            if not call.done:  # another call's end may have ended it
                self._dispatch(call)

    def _ask_placement(self) -> None:
        if not self._asks_placement and self.welcome is not None:
            self._asks_placement = True
            self.start(Call("", GetPlacement(), self.now, PLACEMENT_S, then=self._heard_placement, persistent=False))

    def _heard_placement(self, call: Call) -> None:
        self._asks_placement = False
        if call.error is None:
            self.placed(call.value)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Expire and retry calls that are due, and open ways that take too long; at ``due_at``."""
        now = self.now
        self.due_at = math.inf
        if self.routes.due_at <= now:
            late, turning = self.routes.overdue(now)
            for way in late:
                self.lost(way, now)
            for way in turning:
                self._send_held(way)
        for call in list(self._calls.values()):
            if call.done:  # another call's end has ended it
                continue
            if call.ends_at <= now:
                self._finish(call, error=self._timed_out(call))
                continue
            if call.retry_at is not None and call.retry_at <= now:
                call.retry_at = None
                self._dispatch(call)
            self._note(call.ends_at if call.retry_at is None else min(call.ends_at, call.retry_at))
        self._note(self.routes.due_at)
        self.due_at = max(self.due_at, now + SWEEP_S_MIN)

    def fail_all(self, error: FilaError) -> None:
        """End every call."""
        for way in self.routes.ways:
            way.held.clear()
        calls, self._calls = self._calls, {}
        self._kept_bytes = 0
        for call in calls.values():
            if call.under_way:
                self.routes.over(call)
            call.finish(error=copy(error))  # each one is raised in another place

    def check(self) -> None:
        """Check the invariants, for tests."""
        calls, ways = self._calls.values(), list(self.routes.ways)
        assert self._kept_bytes == sum(call.size_bytes for call in calls)
        assert self._pipe_bytes == sum(way.pipe_bytes for way in ways)
        assert not any(call.done for call in calls)
        for way in ways:
            assert all(call.way is way and not call.under_way for call in way.held.values())
            assert all(self._calls.get(request) is call for request, call in way.held.items())
            assert way.greeting is None or self._calls.get(way.greeting.request) is way.greeting
        for call in calls:
            held = self._is_held(call)
            assert held + call.under_way + (call.retry_at is not None) == 1, (str(call), held, call.under_way, call.retry_at)
        self.routes.check([call for call in calls if call.under_way])

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
            if call.under_way:
                self._settle(call)
            elif call.way is not None and call.way.held:
                call.way.held.pop(call.request, None)

    def _settle(self, call: Call) -> None:
        """Note that a call that was sent is under way no more: it is answered, given up, or about to be sent again."""
        turned = self.routes.over(call)
        if turned is not None:
            self._send_held(turned)

    def _note(self, when: float) -> None:
        self.due_at = min(self.due_at, when)

    def _dispatch(self, call: Call) -> None:
        """Send a call on its shard's way, or hold it back there."""
        way = call.way
        if way is None or call is not way.greeting:
            way = call.way = self._way_of(call)
            if not (way.open and not way.held and self._fits(call, way) and self.routes.may_send(call, way, self.now)):
                way.held[call.request] = call
                self._ask_for_room(way)
                self._note(self.routes.due_at)
                return
        self._send(call, way)

    def _way_of(self, call: Call) -> Way:
        shard = call.shard
        if shard is None or shard.direct is None:
            return self.router
        if type(call.command) is CancelReceive:
            receive = self._calls.get(call.command.request)
            if receive is not None and receive.under_way and receive.way is not None:
                return receive.way
        return self.routes.way_of(shard, self.now)

    def _fits(self, call: Call, way: Way) -> bool:
        return not way.pipe_bytes or way.pipe_bytes + call.size_bytes <= self._pipe_bytes_max

    def _send(self, call: Call, way: Way) -> None:
        if len(call.frames[2]) > self._frame_bytes_max:
            self._finish(call, error=self._too_large(call))
            return
        call.frames[0] = pack_header(call.command.opcode, call.request, 0, self._epoch(call, way))
        call.sent, call.away_until = True, math.inf
        call.place = way.put(call.frames, call.size_bytes)
        self._pipe_bytes += call.size_bytes
        self.routes.sent(call, way)

    def _epoch(self, call: Call, way: Way) -> int:
        if isinstance(way, DirectWay):
            return 0 if call.shard is None else way.tags.get(call.shard.number, 0)
        return 0 if call is way.greeting else self._tag

    def _note_read(self, way: Way, place: int) -> None:
        """Note that the frame in this place, and all before it, have left the pipe."""
        self._pipe_bytes -= way.has_read(place)
        if way.held and way.open:
            self._send_held(way)

    def _recount(self) -> None:
        """Count anew what connections and calls add up to; an interrupt may have come between a change and its count."""
        self._pipe_bytes = sum(way.pipe_bytes for way in self.routes.ways)
        self._kept_bytes = sum(call.size_bytes for call in self._calls.values())
        self.routes.recount(self._calls.values())

    def _is_lost(self, call: Call) -> bool:
        """Return whether an interrupt has left a call neither held, nor under way, nor to be sent again."""
        return not (call.done or call.under_way or self._is_held(call) or call.retry_at is not None)

    def _is_held(self, call: Call) -> bool:
        """Return whether a call waits on its way, to be sent soon."""
        return call.way is not None and call.request in call.way.held

    def _send_held(self, way: Way) -> None:
        """Send calls for which there is room, in order."""
        while way.held and way.open:
            call = next(iter(way.held.values()))
            if not self._fits(call, way):
                self._ask_for_room(way)
                return
            if not self.routes.may_send(call, way, self.now):
                if self.routes.gives_up_turning(call, self.now):
                    self._redirect(way)
                return
            del way.held[call.request]
            self._send(call, way)

    def _ask_for_room(self, way: Way) -> None:
        if way.open and way.probe is None and way.pipe_bytes:
            question = self._greeting_again() if isinstance(way, DirectWay) else GetClusterStatus()
            probe = way.probe = Call("", question, 0.0, math.inf, then=partial(self._probed, way), persistent=False)
            probe.way = way
            self._send(self._register(probe), way)

    def _greeting_again(self) -> Hello:
        return Hello(list(VERSIONS), "", self._session, api_key=self._api_key)

    def _probed(self, way: Way, probe: Call) -> None:
        if way.probe is probe:
            way.probe = None
            self._send_held(way)

    def _makes_room(self, call: Call) -> bool:
        return isinstance(call.command, _RELIEVING) and self.kept_bytes <= 2 * self._kept_bytes_max

    def _finish(self, call: Call, value: object = None, error: FilaError | None = None) -> None:
        self._remove(call)
        call.finish(value, error)

    def _greeted(self, greeting: Call) -> None:
        if greeting is not self.router.greeting:
            return
        self.router.greeting = None
        if greeting.error is not None:
            self._refusal, self._greet_again_at = greeting.error, self.now + GREET_AGAIN_S
            self.fail_all(greeting.error)
            return
        welcome: Welcome = greeting.value
        self._refusal, self._handshakes_failed = None, 0
        self.welcome = welcome
        self._was_open = True
        self._session, self._tag = welcome.session, int.from_bytes(welcome.session[:TAG_BYTES], "big")
        if welcome.max_payload_bytes:
            self._frame_bytes_max = welcome.max_payload_bytes + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES
        self.router.open = True
        if self._direct and welcome.session and welcome.doors is not None:
            self._place(welcome.doors, welcome.shards)
            self._place_held()
        self._send_held(self.router)
        self._on_open(welcome)

    def _place_held(self) -> None:
        """Find the ways of the calls that waited for the placement."""
        held, self.router.held = list(self.router.held.values()), {}
        for call in held:
            if call.done:
                continue
            if call.key:
                call.shard = self.routes.shard(call.key)
            self._dispatch(call)

    def _refused(self, call: Call, error: FilaError, now: float) -> None:
        if error.details.get("greet") is True and self.welcome is not None:  # the broker has forgotten this session
            self.greet(now)
        if call.under_way:
            self._settle(call)
        elif call.way is not None:  # an earlier attempt is answered, and the call waits to be sent again
            call.way.held.pop(call.request, None)
        if error.details.get("moved") is True and call.shard is not None and not call.done:
            self.routes.unplace(call.shard)
            self._ask_placement()
            if not self._is_held(call):
                call.go_back(now)
                self._dispatch(call)
            return
        delay_s = backoff_s(error, call.attempts, self._random)
        # An attempt that the broker may have begun makes the call's outcome unknown, whatever later attempts get.
        call.doubtful |= error.retryable and error.details.get("refused") is not True
        if self._may_repeat(call, error) and now + delay_s < call.deadline:
            if self._is_held(call):  # an earlier attempt was refused, and it is about to be sent again
                return
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


def backoff_s(error: FilaError, attempts: int, random: Random) -> float:
    """Return how long to wait after a refusal, with so many refusals before it."""
    growth = AWAY_GROWTH if isinstance(error, ShardUnavailableError) else OVERLOADED_GROWTH
    ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * growth**attempts)
    return max(ceiling_s * random.uniform(0.5, 1.0), error.retry_after or 0.0)

"""The connection of a client to its broker: the greetings, the placement of the shards, and what a lost link means.

Calls go through the router or straight to a worker (:mod:`routes`). States of a way: *greeting* (Hello is under way, calls
are held back) and *open* (Welcome came); each lost link leads back to the first. :mod:`open_calls` says what happens to
the calls.

The memory that a client keeps for the broker is bounded in bytes. Calls wait in order in a way's ``held`` until they may
go: while greeting, and while there is more than a little in the socket's pipe. So a frame that a stalled broker has not
read ends with its call, instead of being carried out after its caller has given up; only frames in the pipe can't be taken
back. The pipe is a queue, so an answer to one frame shows that all frames before it have left; where no answer would come
soon, the client sends a *probe*: a question that the other side answers at once.
"""

import math
from collections.abc import Callable
from functools import partial
from random import Random

from fila_cluster.client.requests.call import PendingCall
from fila_cluster.client.requests.open_calls import KEPT_BYTES_MAX, OpenCalls
from fila_cluster.client.requests.routes import DirectWay, Routes, ShardRoute, Way, WayState
from fila_proto_zmq.commands import CancelReceive, DoorView, GetClusterStatus, GetPlacement, Hello, Placement, Welcome
from fila_proto_zmq.errors import FilaError, PayloadTooLargeError, UnauthenticatedError
from fila_proto_zmq.frames import VERSIONS, pack_header
from fila_proto_zmq.ids import TAG_BYTES
from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX

PIPE_BYTES_MAX = 8 * 1024 * 1024
"""Frames in the socket's pipe, or one larger one: many times as much as keeps a connection busy until the next answer."""
PLACEMENT_S = 5.0
"""How long to wait for the router to say where the shards are, before it is asked again."""
HANDSHAKES_MAX = 3
"""A router that ends during a handshake looks like one that refuses it; one that refuses does so again and again."""
GREET_AGAIN_S = 1.0
"""How long the refusal of a greeting holds. The next call after that greets again: its API key may be made since, or this
router may be the last one of its cluster to get it."""


class BrokerConnection:
    """The ways of one client to its broker. Each way's ``outgoing`` holds the frames to send there, in order; the shell
    empties it.

    Each open call is in its way's ``held`` as long as it may not be sent. ``welcome`` is None while greeting the router,
    ``was_open`` is set by the first Welcome. ``refusal`` is why the broker does not let this client in, if so: every call
    ends with this error. ``pipe_bytes`` is the size of the frames in the pipes of all ways.
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
        """``on_open`` follows each Welcome of a router, ``on_move(shard)`` each change of the way of a shard's calls."""
        self.endpoint = endpoint
        self.calls = OpenCalls(self, random, kept_bytes_max)
        self.routes = Routes(on_move)
        self.router = self.routes.router
        self.welcome: Welcome | None = None
        self.was_open = False
        self.refusal: FilaError | None = None
        self.pipe_bytes = 0
        self._api_key = api_key
        self._direct = direct
        self._client_version = client_version
        self._on_open = on_open
        self._pipe_bytes_max = pipe_bytes_max
        self._asks_placement = False
        self._greet_again_at = math.inf
        """When the refusal ends, if a greeting was refused."""
        self._handshakes_failed = 0
        """In a row, and none succeeded since."""
        self._frame_bytes_max: float = math.inf
        self._session = b""
        """The secret that identifies this client after a reconnect."""
        self._tag = 0

    # --- the router ---------------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Send Hello to the router: first of all, and again on every new link."""
        self.welcome = None
        self.router.open = False
        hello = Hello(list(VERSIONS), self._client_version, self._session, self._direct, self._api_key)
        self._greet(self.router, hello, self._greeted)

    def _greet(self, way: Way, hello: Hello, then: Callable[[PendingCall], None]) -> None:
        if way.greeting is not None:
            self.calls.remove(way.greeting)
        call = way.greeting = PendingCall("", hello, self.calls.now, math.inf, then=then)
        call.way = way
        self._send(self.calls.add(call), way)

    def _greeted(self, greeting: PendingCall) -> None:
        if greeting is not self.router.greeting:
            return
        self.router.greeting = None
        if greeting.error is not None:
            self.refusal, self._greet_again_at = greeting.error, self.calls.now + GREET_AGAIN_S
            self.calls.fail_all(greeting.error)
            return
        welcome: Welcome = greeting.value
        self.refusal, self._handshakes_failed = None, 0
        self.welcome = welcome
        self.was_open = True
        self._session, self._tag = welcome.session, int.from_bytes(welcome.session[:TAG_BYTES], "big")
        if welcome.max_payload_bytes:
            self._frame_bytes_max = welcome.max_payload_bytes + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES
        self.router.open = True
        if self._direct and welcome.session and welcome.doors is not None:
            self._place(welcome.doors, welcome.shards)
            self._redirect(self.router)
        self._send_held(self.router)
        self._on_open(welcome)

    def admission_error(self) -> FilaError | None:
        """Return the refusal, if there is one. A greeting that was refused some time ago is sent again instead."""
        if self.refusal is not None and self.calls.now >= self._greet_again_at:
            self.refusal, self._greet_again_at = None, math.inf
            self.greet()
        return self.refusal

    @property
    def reachable(self) -> bool:
        """Whether some way is open."""
        return self.welcome is not None or any(way.open for way in self.routes.ways)

    def disconnected(self) -> None:
        """Note the loss of the link to the router and of everything in flight on it; its outgoing frames are not lost."""
        if self._handshakes_failed < HANDSHAKES_MAX:
            self.refusal = None
        unsent = self.router.take_unsent()
        self._recount()
        self.greet()
        self.calls.take_back(self.router, unsent)
        for call in self.calls:
            if not (call.done or call.under_way or call.is_held or call.retry_at is not None):
                self.dispatch(call)  # an interrupt has left it so
        self.routes.left(self.router)

    def refused_link(self, why: str, *, final: bool) -> None:
        """Note that the server refused a connection before any frame could be sent. After some in a row it is not by chance.

        ``final``: the link does not try again by itself; there will be another link for later calls.
        """
        error = UnauthenticatedError(f"no connection to {self.endpoint}: {why}")
        self._handshakes_failed += 1
        if final:
            self.calls.fail_all(error)
        elif self._handshakes_failed == HANDSHAKES_MAX:
            self.refusal, self._greet_again_at = error, math.inf
            self.calls.fail_all(error)

    # --- direct ways --------------------------------------------------------------------------------------------------

    def placed(self, placement: Placement) -> None:
        """Follow the router's placement of the shards."""
        if self.welcome is not None and self._direct and placement.doors is not None:
            self._place(placement.doors, self.welcome.shards)

    def _place(self, doors: list[DoorView], shards: int) -> None:
        for way in self.routes.placed(doors, shards):
            self._retire(way)
        self._recount()  # also of the ways that were gone while others were retired

    def _retire(self, way: DirectWay) -> None:
        self.routes.retire(way, self.calls.now)
        if not way.calls:  # nothing of it will be answered: its calls were given up
            way.take_unsent()
            way.take_pipe()
            self._recount()
        self.calls.note(self.routes.due_at)
        self._redirect(way)

    def at_door(self, way: DirectWay, door: bytes) -> None:
        """Take in the banner of a direct connection: which door it is."""
        if not door:
            self._retire(way)
        elif door == way.door and way.state == WayState.OPENING:
            hello = Hello(list(VERSIONS), self._client_version, self._session, api_key=self._api_key)
            self._greet(way, hello, partial(self._admitted, way))
        else:
            self.lost(way)

    def _admitted(self, way: DirectWay, greeting: PendingCall) -> None:
        if greeting is not way.greeting:
            return
        way.greeting = None
        if greeting.error is not None:
            self.lost(way)
            return
        if way.state != WayState.OPENING:  # it was retired in between
            return
        self.routes.opened(way)
        self._send_held(way)

    def lost(self, way: DirectWay) -> None:
        """Note the loss of a direct connection, or that none could be made. Frames that were not sent go another way."""
        unsent = way.take_unsent()
        way.take_pipe()
        self._recount()
        if way.greeting is not None:
            self.calls.remove(way.greeting)
            way.greeting = None
        if way.probe is not None:
            self.calls.remove(way.probe)
            way.probe = None
        self.routes.closed(way, self.calls.now)
        self.calls.take_back(way, unsent)
        self._redirect(way)
        self.routes.left(way)

    def replace(self, call: PendingCall, shard: ShardRoute) -> None:
        """Send a call again that a worker refused because it does not have the shard; ask the router who has it."""
        self.routes.place(shard, None)
        if not self._asks_placement and self.welcome is not None:
            self._asks_placement = True
            question = PendingCall(
                "", GetPlacement(), self.calls.now, PLACEMENT_S, then=self._placement_came, persistent=False
            )
            self.calls.start(question)
        if not call.is_held:
            call.go_back(self.calls.now)
            self.dispatch(call)

    def _placement_came(self, call: PendingCall) -> None:
        self._asks_placement = False
        if call.error is None:
            self.placed(call.value)

    def tick(self) -> None:
        """Give up ways that take too long to open or to close, and shards that take too long to change ways."""
        now = self.calls.now
        if self.routes.due_at <= now:
            late, turning = self.routes.overdue(now)
            for way in late:
                self.lost(way)
            for way in turning:
                self._send_held(way)

    # --- sending ------------------------------------------------------------------------------------------------------

    def dispatch(self, call: PendingCall) -> None:
        """Send a call on its shard's way, or hold it back there."""
        way = call.way
        if way is None or call is not way.greeting:
            now = self.calls.now
            way = call.way = self._way_of(call, now)
            if not (way.open and not way.held and self._fits(call, way) and self.routes.may_send(call, way, now)):
                way.held[call.request] = call
                self._ask_for_room(way)
                self.calls.note(self.routes.due_at)
                return
        self._send(call, way)

    def _way_of(self, call: PendingCall, now: float) -> Way:
        shard = call.shard
        if shard is None or shard.direct is None:
            return self.router
        if type(call.command) is CancelReceive:
            receive = self.calls.get(call.command.request)
            if receive is not None and receive.under_way and receive.way is not None:
                return receive.way
        return self.routes.way_of(shard, now)

    def _redirect(self, way: Way) -> None:
        """Find the ways of the calls that wait on ``way``, by the placement of now."""
        held, way.held = list(way.held.values()), {}
        for call in held:
            if call.done:  # another call's end has ended it
                continue
            if call.key:
                call.shard = self.routes.shard(call.key)
            self.dispatch(call)

    def _fits(self, call: PendingCall, way: Way) -> bool:
        return not way.pipe_bytes or way.pipe_bytes + call.size_bytes <= self._pipe_bytes_max

    def _send(self, call: PendingCall, way: Way) -> None:
        if len(call.frames[2]) > self._frame_bytes_max:
            self.calls.finish(call, error=self._too_large(call))
            return
        call.frames[0] = pack_header(call.command.opcode, call.request, 0, self._epoch(call, way))
        call.sent, call.away_until = True, math.inf
        call.place = way.put(call.frames, call.size_bytes)
        self.pipe_bytes += call.size_bytes
        self.routes.sent(call, way)

    def take_over(self, call: PendingCall, request: int, way: DirectWay) -> None:
        """Take over a call whose frame was given to the socket of its way, with its request number."""
        call.way, call.shard = way, self.routes.shard(call.key)
        self.calls.keep(call, request)
        call.sent = True
        call.place = way.put_before(call.size_bytes)
        self.pipe_bytes += call.size_bytes
        self.routes.sent(call, way)

    def _epoch(self, call: PendingCall, way: Way) -> int:
        if isinstance(way, DirectWay):
            return 0 if call.shard is None else way.tags.get(call.shard.number, 0)
        return 0 if call is way.greeting else self._tag

    def over(self, call: PendingCall) -> None:
        """Note that a call that was sent is under way no more: it is answered, given up, or about to be sent again."""
        turned = self.routes.over(call)
        if turned is not None:
            self._send_held(turned)

    def note_read(self, way: Way, place: int) -> None:
        """Note that the frame in this place, and all before it, have left the pipe."""
        self.pipe_bytes -= way.has_read(place)
        if way.held and way.open:
            self._send_held(way)

    def _send_held(self, way: Way) -> None:
        """Send calls for which there is room, in order."""
        while way.held and way.open:
            call = next(iter(way.held.values()))
            if not self._fits(call, way):
                self._ask_for_room(way)
                return
            if not self.routes.may_send(call, way, self.calls.now):
                if self.routes.gives_up_turning(call, self.calls.now):
                    self._redirect(way)
                return
            del way.held[call.request]
            self._send(call, way)

    def _ask_for_room(self, way: Way) -> None:
        if way.open and way.probe is None and way.pipe_bytes:
            greeting = Hello(list(VERSIONS), "", self._session, api_key=self._api_key)
            question = greeting if isinstance(way, DirectWay) else GetClusterStatus()
            probe = way.probe = PendingCall("", question, 0.0, math.inf, then=partial(self._probed, way), persistent=False)
            probe.way = way
            self._send(self.calls.add(probe), way)

    def _probed(self, way: Way, probe: PendingCall) -> None:
        if way.probe is probe:
            way.probe = None
            self._send_held(way)

    def _recount(self) -> None:
        """Count anew what the pipes and the calls add up to; an interrupt may have come between a change and its count."""
        for way in self.routes.ways:
            way.recount()
        self.pipe_bytes = sum(way.pipe_bytes for way in self.routes.ways)
        self.calls.recount()
        self.routes.recount(self.calls)

    def check(self) -> None:
        """Check the invariants, for tests."""
        ways = list(self.routes.ways)
        assert self.pipe_bytes == sum(way.pipe_bytes for way in ways)
        for way in ways:
            assert all(call.way is way and not call.under_way for call in way.held.values())
            assert all(self.calls.get(request) is call for request, call in way.held.items())
            assert way.greeting is None or self.calls.get(way.greeting.request) is way.greeting
        self.routes.check([call for call in self.calls if call.under_way])

    def _too_large(self, call: PendingCall) -> FilaError:
        """Return the error for a larger frame than the broker reads: it would cut the connection instead."""
        accepted = 0 if self.welcome is None else self.welcome.max_payload_bytes
        return PayloadTooLargeError(
            f"a message of {len(call.frames[2])} bytes: this broker accepts payloads up to {accepted} "
            "([limits] max_payload_bytes); store it elsewhere and send a reference",
            details={"max_payload_bytes": accepted},
        )

"""Parked throttle keys: no worker delivers messages with such a key until the park ends.

A worker sends its parks to the router, which sends them to the other workers. If the worker asks for an answer, the router
answers once each of the others has confirmed the parks, or is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import Done, Park
from fila_proto_zmq.frames import Header
from fila_router.core.feature import Registration, RouterFeature, RouterState
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import WorkerState

PARKS_MAX: Final = 100_000
"""Beyond it, the parks that end first are forgotten."""


class Parks:
    """Parked throttle keys with their ends, Unix ms."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def merge(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Add the parks of a worker; return the new ones."""
        known = self._until_ms
        new_parks = {key: until_ms for key, until_ms in parks.items() if until_ms > max(now_ms, known.get(key, 0))}
        known |= new_parks
        if len(known) > PARKS_MAX:
            self._until_ms = dict(sorted(known.items(), key=lambda park: park[1])[-PARKS_MAX:])
        return new_parks

    def missing_in(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Return the parks that are not among ``parks``."""
        self._until_ms = {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > now_ms}
        return {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > parks.get(key, 0)}


@dataclass(slots=True)
class ParkRequest:
    """A worker's request to park keys. Invariant: it is done exactly when ``waiting`` is empty.

    ``origin`` and ``request``: where the answer goes. ``waiting``: the workers that have yet to confirm.
    """

    origin: bytes
    request: int
    waiting: set[bytes]


class ThrottleParks(RouterFeature):
    """The parks, and the open requests by the number that workers repeat in their answers.

    A request ends when the slowest worker has answered or is lost. So no more are open than workers send until a silent one
    is lost.
    """

    def __init__(self, state: RouterState, bank: TokenBank) -> None:
        super().__init__(state)
        self._bank = bank
        self.messages = {Park: self._park}
        self.answers = {Park: self._parked}
        self._parks = Parks()
        self._open: dict[int, ParkRequest] = {}
        self._asked = 0

    def _park(self, source: WorkerState, command: Park, request: int, now_ms: int) -> None:
        """Send a worker's parks to the others. A ``request`` is answered when all of them have confirmed the parks."""
        parks = command.parks
        new_parks = self._parks.merge(parks, self.state.wall_ms(now_ms))
        self._bank.defer(new_parks, now_ms)
        workers = self.state.table.workers.values()
        others = [worker.identity for worker in workers if worker.routable and worker is not source]
        if not request:
            if new_parks:
                self.state.outgoing.send(others, Park(new_parks))
        elif others:
            self._asked += 1
            self._open[self._asked] = ParkRequest(source.identity, request, set(others))
            self.state.outgoing.send(others, Park(parks), self._asked)
        else:
            self._confirm(ParkRequest(source.identity, request, set()))

    def _parked(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        self._check_off(header.request, worker)

    def _check_off(self, number: int, worker: WorkerState) -> None:
        """Wait no longer for a worker; answer the request if it waited for this worker only."""
        park_request = self._open.get(number)
        if park_request is not None:
            park_request.waiting.discard(worker.identity)
            if not park_request.waiting:
                self._confirm(self._open.pop(number))

    def _confirm(self, park_request: ParkRequest) -> None:
        answer = encode_reply(Park.opcode, park_request.request, Done())
        self.state.outgoing.to_workers.append([park_request.origin, b"", *answer])

    def on_register(self, registration: Registration) -> None:
        """Take in the worker's parks, and add those that it lacks to the answer."""
        parks = registration.offer.parks
        self._park(registration.worker, Park(parks), 0, registration.now_ms)
        registration.answer.parks = self._parks.missing_in(parks, self.state.wall_ms(registration.now_ms))

    def on_return(self, worker: WorkerState, now_ms: int) -> None:
        """Send all parks to a worker that was lost and is back."""
        parks = self._parks.missing_in({}, self.state.wall_ms(now_ms))
        if parks:
            self.state.outgoing.send([worker.identity], Park(parks))

    def on_absent(self, worker: WorkerState, now_ms: int) -> None:
        """Answer the requests that waited for this worker only."""
        for number in list(self._open):
            self._check_off(number, worker)

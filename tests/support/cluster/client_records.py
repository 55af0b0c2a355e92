"""What clients know for sure, written down for each message, and whether the broker's deeds agree with it.

A message is known by its payload, which its producer chose and which no other message has: so one whose enqueue was never answered is
in the records too. Clients write down *before* a call what they are about to do, and after it what was confirmed.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import BatchError, FilaError


@dataclass(slots=True)
class Handed:
    """One delivery: when it was leased, and what was done with it. ``returned``: a verb that gives it back was tried."""

    leased_at: float
    attempts: int
    returned: bool = False
    settled: bool = False
    """Some verb was confirmed."""


@dataclass(slots=True)
class Page:
    """One message."""

    ids: set[str] = field(default_factory=set)
    confirmed: bool = False
    handed: list[Handed] = field(default_factory=list)
    ack_tried: bool = False
    acked_at: float | None = None
    attempts_at_least: int = 0
    """Of a delivery that was leased after ``counted_at``: an earlier one may have been waiting in a client meanwhile."""
    counted_at: float = 0.0


class ClientRecords:
    """All messages of a run. ``faults``: from when to when something was dead or paused, so that what was open then may come again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pages: dict[bytes, Page] = defaultdict(Page)
        self.faults: list[tuple[float, float]] = []
        self.wrong: list[str] = []
        self.late: list[str] = []
        """Calls that took longer than their timeout."""
        self.refused: list[str] = []
        """Errors that clients saw. Faults excuse them; what does not count as a fault has none."""
        self.confirmed = 0
        """Messages whose enqueue was confirmed."""
        self.acked = 0
        """Messages whose ack was confirmed."""

    # --- what clients do ----------------------------------------------------------------------------------------------

    def confirm(self, payload: bytes, message_id: str) -> None:
        """An enqueue was answered with an id."""
        with self.lock:
            page = self.pages[payload]
            self.confirmed += not page.confirmed
            page.confirmed = True
            page.ids.add(message_id)

    def hand(self, delivery: Delivery) -> Handed:
        """A delivery came."""
        with self.lock:
            page = self.pages[delivery.payload]
            leased_at = min(delivery.leased_at.timestamp(), time.time())  # the clock of its host may be ahead
            if page.acked_at is not None and leased_at > page.acked_at:
                self.wrong.append(f"{delivery.payload!r} was delivered again after its ack was confirmed")
            if delivery.attempts < page.attempts_at_least and leased_at > page.counted_at:
                self.wrong.append(f"{delivery.payload!r} has {delivery.attempts} attempts: a confirmed one was forgotten")
            page.ids.add(delivery.id)
            handed = Handed(leased_at, delivery.attempts)
            page.handed.append(handed)
            return handed

    def settle(self, delivery: Delivery, handed: Handed, verb: str) -> None:
        """Settle by ``verb``, and write down what is certain afterwards."""
        page = self.pages[delivery.payload]
        with self.lock:
            page.ack_tried |= verb == "ack"
            handed.returned |= verb != "ack"
        try:
            if verb == "ack":
                delivery.ack()
            elif verb == "nack":
                delivery.nack("again")
            else:
                delivery.retry(after=0.05)
        except FilaError as error:
            self.refused.append(f"{verb}: {error!r}")
            return  # unknown or refused: nothing is counted on
        with self.lock:
            handed.settled = True
            if verb == "ack":
                self.acked += page.acked_at is None
                page.acked_at = time.time()
            else:
                page.attempts_at_least = max(page.attempts_at_least, delivery.attempts + 1)
                page.counted_at = time.time()

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Something is killed or paused within a block, and all is served again at its end."""
        began = time.time()
        try:
            yield
        finally:
            with self.lock:
                self.faults.append((began, time.time()))

    # --- what must hold -----------------------------------------------------------------------------------------------

    def lost(self) -> list[bytes]:
        """Confirmed messages that are not there when nothing is left in the queues."""
        return [payload for payload, page in self.pages.items() if page.confirmed and not page.handed and not page.ack_tried]

    def stored_twice(self) -> list[bytes]:
        """Messages with more than one id, although each had a dedup id."""
        return [payload for payload, page in self.pages.items() if len(page.ids) > 1]

    def unexplained(self) -> list[bytes]:
        """Messages that came again although they were not given back and nothing was killed while they were open."""
        return [payload for payload, page in self.pages.items() if not all(self._explained(page))]

    def duplicates(self) -> int:
        """Deliveries that came again because of a fault."""
        return sum(not earlier.returned for page in self.pages.values() for earlier in page.handed[:-1])

    def _explained(self, page: Page) -> Iterator[bool]:
        handed = sorted(page.handed, key=lambda handed: handed.leased_at)
        for earlier, later in pairwise(handed):
            yield earlier.returned or any(
                earlier.leased_at - FLIGHT_S <= ended and began <= later.leased_at for began, ended in self.faults
            )

    def check(self) -> None:
        """Call when all queues are empty."""
        for what in ("wrong", "lost", "stored_twice", "unexplained", "late"):
            found = getattr(self, what)
            found = found() if callable(found) else found
            assert not found, f"{what}: {len(found)}: {found[:10]}"


FLIGHT_S = 0.1
"""A lease is dated when its turn began."""

BACKLOG_MAX = 10_000
"""Messages that wait, above which producers pause: at the end all of them are consumed."""

SLOW_MACHINE_S = 5.0
"""How late a thread of this process may be woken."""


class Load:
    """Producers and consumers in threads of this process, with clients that outlive whatever is done to the broker."""

    def __init__(
        self, endpoint: str, records: ClientRecords, queues: Iterable[str], seed: int = 0, timeout: float = 5.0
    ) -> None:
        self.records = records
        self.queues = list(queues)
        self._endpoint = endpoint
        self._timeout = timeout
        self._seed = seed
        self._stop_producing = threading.Event()
        self._stop = threading.Event()
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []
        self.crashed: list[BaseException] = []

    def start(self, producers: int = 2, consumers: int = 3, pause: float = 0.02) -> None:
        """Begin. ``pause``: of a producer between two batches."""
        for number in range(producers):
            self._producers.append(threading.Thread(target=self._guarded, args=(self._produce, number, pause)))
        for number in range(consumers):
            self._consumers.append(threading.Thread(target=self._guarded, args=(self._consume, number)))
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def _guarded(self, target: object, *arguments: object) -> None:
        try:
            target(*arguments)  # type: ignore[operator]
        except BaseException as error:
            self.crashed.append(error)
            raise

    def _produce(self, number: int, pause: float) -> None:
        choice = random.Random(f"{self._seed} producer {number}")
        batch: list[Message] = []
        sent = 0
        with Client(self._endpoint, timeout=self._timeout) as client:
            while not self._stop_producing.wait(pause):
                if self.records.confirmed - self.records.acked > BACKLOG_MAX:
                    continue
                if not batch:
                    queue = choice.choice(self.queues)
                    batch = [self._message(number, sent + index, choice) for index in range(choice.choice((1, 5, 20)))]
                    sent += len(batch)
                if self._enqueue(client, queue, batch):
                    batch = []

    def _message(self, producer: int, number: int, choice: random.Random) -> Message:
        name = f"{self._seed}-{producer}-{number}"
        filling = choice.choice((0, 0, 100, 1000))
        return Message(f"{name} {'.' * filling}".encode(), fairness_key=f"k{choice.randrange(5)}", dedup_id=name)

    def _enqueue(self, client: Client, queue: str, batch: list[Message]) -> bool:
        """Whether all of it is in; what is unknown is sent again, with the same dedup ids."""
        with self._timed("enqueue_many", self._timeout):
            try:
                results: list[object] = list(client.enqueue_many(queue, batch))
            except BatchError as error:
                self.records.refused.append(f"enqueue_many: {error!r}")
                results = list(error.results)
            except FilaError as error:
                self.records.refused.append(f"enqueue_many: {error!r}")
                return False
        for message, result in zip(batch, results, strict=True):
            if isinstance(result, str):
                self.records.confirm(bytes(message.payload), result)
        return all(isinstance(result, str) for result in results)

    def _consume(self, number: int) -> None:
        choice = random.Random(f"{self._seed} consumer {number}")
        with Client(self._endpoint, timeout=self._timeout) as client:
            while not self._stop.is_set():
                if number % 2 and not self._stop_producing.is_set():
                    self._consume_pushed(client, choice)
                else:
                    self._receive(client, choice)

    def _receive(self, client: Client, choice: random.Random) -> None:
        queue = choice.choice(self.queues)
        with self._timed("receive", self._timeout + 0.2):
            try:
                deliveries = client.receive(queue, choice.choice((1, 10, 50)), wait=0.2)
            except FilaError as error:
                self.records.refused.append(f"receive: {error!r}")
                return
        for delivery in deliveries:
            self._settle(delivery, self.records.hand(delivery), choice)

    def _consume_pushed(self, client: Client, choice: random.Random) -> None:
        """Take some deliveries as they come; the rest is given back."""
        ends_at = time.monotonic() + choice.uniform(0.5, 2)
        with (
            self._refusals("consume"),
            client.consume(choice.choice(self.queues), prefetch=choice.choice((1, 20, 100))) as deliveries,
        ):
            closing = threading.Timer(ends_at - time.monotonic(), deliveries.close)
            closing.start()
            for delivery in deliveries:
                self._settle(delivery, self.records.hand(delivery), choice)
            closing.cancel()

    @contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        try:
            yield
        except FilaError as error:
            self.records.refused.append(f"{what}: {error!r}")

    def _settle(self, delivery: Delivery, handed: Handed, choice: random.Random) -> None:
        draw = choice.random()
        verb = "ack" if draw < 0.75 or self._stop_producing.is_set() else "nack" if draw < 0.9 else "retry"
        with self._timed(verb, self._timeout):
            self.records.settle(delivery, handed, verb)

    @contextmanager
    def _timed(self, what: str, timeout: float) -> Iterator[None]:
        """No call takes longer than its timeout, whatever happens."""
        started = time.monotonic()
        yield
        took = time.monotonic() - started
        if took > timeout + SLOW_MACHINE_S:
            self.records.late.append(f"{what} took {took:.1f} s, its timeout is {timeout:.1f} s")

    def abandon(self) -> None:
        """Have all threads end soon, after an error."""
        self._stop_producing.set()
        self._stop.set()

    def stop(self, patience_s: float = 60.0) -> None:
        """End the producers, let the consumers empty the queues, end them too. ``patience_s``: without an ack."""
        self._stop_producing.set()
        for thread in self._producers:
            thread.join()
        acked, since = self.records.acked, time.monotonic()
        with Client(self._endpoint, timeout=self._timeout) as client:
            while not self._empty(client) and time.monotonic() - since < patience_s and not self.crashed:
                if self.records.acked > acked:
                    acked, since = self.records.acked, time.monotonic()
                time.sleep(0.1)
            emptied = self._empty(client)
        self._stop.set()
        for thread in self._consumers:
            thread.join()
        if self.crashed:
            raise self.crashed[0]
        assert emptied, "the queues were not emptied in time"

    def _empty(self, client: Client) -> bool:
        with suppress(FilaError):
            return all(client.queue_stats(queue).depth == 0 for queue in self.queues)
        return False

"""The clients of the endurance run: one process that uses every verb, again and again, at a fixed number of actions a second.

Each action leaves as much as it finds, or leaves something that the cluster itself ends (a time to live, an idle expiry, a
window of dedup ids). So what the cluster keeps stays the same, however long it runs. Drainers receive what is in the queues,
and settle it in every way.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from benchmarks.harness.processes import Gate
from fila_cluster import AsyncClient, AsyncDelivery, Client, Message
from fila_cluster.errors import BatchError, FilaError

DLQ: Final = ".dlq"
DRAINERS: Final = 2
DRAINED_AT_ONCE: Final = 20
QUEUES_AT_ONCE: Final = 20
IDLE_S: Final = 0.5
SCHEDULES: Final = 10
EXPECTED: Final = {"LEASE_EXPIRED", "MESSAGE_NOT_FOUND", "QUEUE_NOT_FOUND", "RATE_LIMITED"}
"""What a correct cluster may answer here: messages expire, are purged, and queues end while they are in use."""
ON_ENQUEUE: Final = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, priority = msg.payload_size % 3 }
end
"""
ON_FAILURE: Final = """
function on_failure(msg)
  if msg.attempts > 2 then return { action = "dlq" } end
  return { action = "retry", delay_ms = 200 }
end
"""


@dataclass
class Done:
    """What was done, by kind, and what went wrong."""

    actions: Counter[str] = field(default_factory=Counter)
    settled: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    """Errors that a correct cluster may give, by their code."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Other errors."""
    left: dict[str, int] = field(default_factory=dict)
    """What was in queues at the end, after everything was drained."""


@dataclass(frozen=True)
class Names:
    """The queues and keys that are used."""

    queues: tuple[str, ...]
    keys: int

    @classmethod
    def numbered(cls, queues: int, keys: int) -> "Names":
        """Return so many of them."""
        return cls(tuple(f"worn-{number}" for number in range(queues)), keys)


async def use(gate: Gate, address: str, dashboard: str, names: Names, per_second: float, seconds: float) -> Done:
    """Use a cluster for some time, then drain it."""
    async with AsyncClient(address, timeout=60) as client:
        mixed = MixedUse(client, address, dashboard, names)
        await mixed.prepare()
        gate.wait()
        await mixed.run(per_second, seconds)
        await mixed.end()
        return mixed.done


class MixedUse:
    """One process of clients."""

    def __init__(self, client: AsyncClient, address: str, dashboard: str, names: Names) -> None:
        self.client, self.address, self.dashboard, self.names = client, address, dashboard, names
        self.done = Done()
        self.random = random.Random(1)
        self._number = 0
        self._stopped = False
        self._found = 0
        """Messages that the newest look of a drainer has found."""
        self._actions: dict[Callable[[], Awaitable[None]], int] = {
            self.enqueue: 30,
            self.enqueue_many: 10,
            self.produce: 3,
            self.consume: 3,
            self.consume_batches: 3,
            self.message_batch: 3,
            self.delay: 3,
            self.deduplicate: 3,
            self.expire: 3,
            self.look: 6,
            self.pause: 1,
            self.purge: 1,
            self.cancel: 2,
            self.redrive: 2,
            self.throttle: 1,
            self.configure: 1,
            self.schedule: 1,
            self.from_template: 1,
            self.make_and_delete: 2,
            self.connect: 1,
            self.connect_blocking: 1,
            self.leave_consuming: 1,
            self.post: 2,
        }

    async def prepare(self) -> None:
        """Make the queues, a template, and throttles."""
        for number, queue in enumerate(self.names.queues):
            options: dict[str, Any] = {"visibility_timeout": 10.0, "max_attempts": 6}
            if number % 10 == 0:
                options |= {"on_enqueue": ON_ENQUEUE, "on_failure": ON_FAILURE}
            if number % 10 == 1:
                options |= {"max_in_flight_per_key": 1}
            if number % 20 == 2:
                options |= {"delivery": "at_most_once"}
            await self.client.create_queue(queue, **options)
        await self.client.put_template("passing-*", idle_expiry=3.0)
        await self.client.create_queue("callbacks", visibility_timeout=10.0)

    async def run(self, per_second: float, seconds: float) -> None:
        """Begin an action at each of its times, while drainers work."""
        kinds, weights = list(self._actions), list(self._actions.values())
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(DRAINERS):
                tasks.create_task(self._drain())
            for number in range(int(seconds * per_second)):
                await asyncio.sleep(started + number / per_second - time.monotonic())
                (action,) = self.random.choices(kinds, weights)
                tasks.create_task(self._attempt(action.__name__, action))
            self._stopped = True

    async def end(self) -> None:
        """Remove what is left by settling, and count what is left then."""
        for schedule in await self.client.list_schedules():
            await self.client.delete_schedule(schedule.name)
        await asyncio.sleep(6.0)  # expired messages are dead-lettered within 5 s, passing queues end after 3 s
        give_up_at = time.monotonic() + 120
        while (
            left := {info.name: info.depth for info in await self.client.active_queues()}
        ) and time.monotonic() < give_up_at:
            for name in left:
                await self.client.purge_queue(name)
            await asyncio.sleep(0.5)
        self.done.left = left | {
            info.name: info.depth for info in await self.client.list_queues("passing-") if not info.is_dead_letter
        }

    async def _attempt(self, name: str, action: Callable[[], Awaitable[None]]) -> None:
        self.done.actions[name] += 1
        try:
            await action()
        except BatchError as error:
            for each in error.results:
                if isinstance(each, FilaError):
                    self._failed(name, each)
        except FilaError as error:
            self._failed(name, error)
        except Exception as error:  # it is counted, and judged at the end
            self.done.wrong[f"{name}: {type(error).__name__}: {error}"[:200]] += 1

    def _failed(self, name: str, error: FilaError) -> None:
        if error.code in EXPECTED:
            self.done.expected[error.code] += 1
        else:
            self.done.wrong[f"{name}: {error.code}: {error}"[:200]] += 1

    # --- what is taken out --------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        while not self._stopped:
            self._found = 0
            await self._attempt("drain", self._drain_once)
            if not self._found:
                await asyncio.sleep(IDLE_S)

    async def _drain_once(self) -> None:
        names = [info.name for info in await self.client.active_queues("worn-") if not (info.is_dead_letter or info.paused)]
        self.random.shuffle(names)
        names = names[:QUEUES_AT_ONCE]
        deliveries = await self.client.receive_any(dict.fromkeys(names, DRAINED_AT_ONCE)) if names else []
        self._found = len(deliveries)
        await self._settle_all(deliveries)

    async def _settle_all(self, deliveries: list[AsyncDelivery]) -> None:
        acked = []
        for delivery in deliveries:
            how = self.random.random()
            if how < 0.85:
                acked.append(delivery)
                continue
            await self._attempt("settle", partial(self._settle, delivery, how))
        self.done.settled["ack"] += len(acked)
        await self.client.ack(acked)

    async def _settle(self, delivery: AsyncDelivery, how: float) -> None:
        if int(delivery.queue.removeprefix("worn-")) % 20 == 2:
            return  # settled when it was delivered
        if how < 0.88:
            self.done.settled["nack"] += 1
            await delivery.nack("nacked", metadata=b"left")
        elif how < 0.91:
            self.done.settled["retry"] += 1
            await delivery.retry(0.1, "again")
        elif how < 0.94:
            self.done.settled["fail"] += 1
            await delivery.fail("failed")
        elif how < 0.96:
            self.done.settled["defer"] += 1
            await delivery.defer(0.1)
        elif how < 0.98:
            self.done.settled["extend"] += 1
            await delivery.extend(5.0)
            await delivery.ack()
        else:
            self.done.settled["give back"] += 1
            await self.client.give_back([delivery])

    # --- what is put in -----------------------------------------------------------------------------------------------

    def _queue(self) -> str:
        return self.random.choice(self.names.queues)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _options(self) -> dict[str, Any]:
        key = f"k{self.random.randrange(self.names.keys)}"
        options: dict[str, Any] = {
            "fairness_key": key,
            "weight": self.random.choice((None, 1, 3)),
            "headers": {"tenant": key},
        }
        if self.random.random() < 0.2:
            options |= {"throttle_keys": [f"provider-{self.random.randrange(5)}"], "cost": self.random.choice((1, 0.5))}
        if self.random.random() < 0.3:
            options |= {"priority": self.random.randrange(-3, 4)}
        return options

    def _payload(self) -> bytes:
        return b"x" * self.random.choice((0, 10, 100, 1000, 20_000))

    def _messages(self, count: int) -> list[Message]:
        return [Message(self._payload(), **self._options()) for _ in range(count)]

    async def enqueue(self) -> None:
        """Enqueue a message."""
        await self.client.enqueue(self._queue(), self._payload(), **self._options())

    async def enqueue_many(self) -> None:
        """Enqueue several."""
        await self.client.enqueue_many(self._queue(), self._messages(20))

    async def produce(self) -> None:
        """Send some messages through a producer."""
        async with self.client.producer(self._queue()) as producer:
            for _ in range(10):
                await producer.send(self._payload(), **self._options())

    async def delay(self) -> None:
        """Enqueue a message for later."""
        await self.client.enqueue(self._queue(), b"later", delay=self.random.uniform(0.1, 5), **self._options())

    async def deduplicate(self) -> None:
        """Enqueue a message twice, with one dedup id."""
        queue, number = self._queue(), self._next()
        modes: tuple[Literal["first"], Literal["last"]] = ("first", "last")
        for mode in modes:
            await self.client.enqueue(queue, b"once", dedup_id=f"id-{number}", dedup_mode=mode)

    async def expire(self) -> None:
        """Enqueue messages that nobody is to get."""
        await self.client.enqueue(self._queue(), b"short", ttl=0.2, delay=0.5, **self._options())

    async def message_batch(self) -> None:
        """Enqueue messages with a callback."""
        async with self.client.batch(Message(b"all done"), "callbacks", name="worn") as batch:
            await batch.enqueue_many(self._queue(), self._messages(3))

    async def schedule(self) -> None:
        """Put a schedule, and delete an older one."""
        number = self._next()
        await self.client.put_schedule(f"every-{number % SCHEDULES}", self._queue(), b"due", every=1.0, ttl=5.0)
        await self.client.delete_schedule(f"every-{(number + SCHEDULES // 2) % SCHEDULES}")
        await self.client.list_schedules()

    async def from_template(self) -> None:
        """Have a queue made by a template; it ends by itself."""
        queue = f"passing-{self._next()}"
        await self.client.enqueue(queue, b"passing")
        await self.client.ack(await self.client.receive(queue, 10))

    async def make_and_delete(self) -> None:
        """Make a queue, use it, and delete it with its messages."""
        queue = f"made-{self._next()}"
        await self.client.create_queue(queue, on_enqueue=ON_ENQUEUE)
        await self.client.enqueue_many(queue, self._messages(10))
        await self.client.nack(await self.client.receive(queue, 3))
        for delivery in await self.client.receive(queue, 2):
            await delivery.fail("deleted soon")
        await self.client.update_queue(queue, max_attempts=2)
        await self.client.delete_queue(queue, force=True)

    # --- others that consume ------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        """Take some messages as they are pushed."""
        async with self.client.consume(self._queue(), prefetch=10) as consumer:
            for _ in range(5):
                delivery = await consumer.take(0.2)
                if delivery is None:
                    break
                await delivery.ack()

    async def consume_batches(self) -> None:
        """Take batches of callbacks."""
        async with self.client.consume_batches("callbacks", max_messages=50) as batches:
            try:
                async with asyncio.timeout(0.5):
                    async for batch in batches:
                        await batch.ack()
            except TimeoutError:
                pass

    async def connect(self) -> None:
        """Connect, use the connection, and leave with a message in hand."""
        async with AsyncClient(self.address, timeout=60) as other:
            queue = self._queue()
            await other.enqueue(queue, self._payload(), **self._options())
            await other.receive(queue, 2)

    async def connect_blocking(self) -> None:
        """Do the same with a blocking client, in a thread."""
        queue, options = self._queue(), self._options()

        def used() -> None:
            with Client(self.address, timeout=60) as other:
                other.enqueue(queue, b"blocking", **options)
                with other.consume(queue, prefetch=3) as consumer:
                    delivery = consumer.take(0.2)
                    if delivery is not None:
                        delivery.ack()

        await asyncio.to_thread(used)

    async def leave_consuming(self) -> None:
        """Cancel a receive that waits, and a consumer."""
        task = asyncio.create_task(self.client.receive(self._queue(), 5, wait=30))
        await asyncio.sleep(0.05)
        if task.done():
            for delivery in task.result():
                await self._settle(delivery, 1.0)
        else:
            task.cancel()
            await asyncio.wait([task])

    # --- looking and changing -----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look at a queue in every way."""
        queue = self._queue()
        found = await self.client.browse(queue, limit=20)
        await self.client.queue_stats(queue)
        await self.client.why(queue, fairness_key=f"k{self.random.randrange(self.names.keys)}")
        if found:
            await self.client.why(queue, message_id=found[-1].id)
        await self.client.list_queues("worn-1")
        await self.client.connections()
        await self.client.audit(10)

    async def pause(self) -> None:
        """Pause a queue and a key for a moment."""
        queue, key = self._queue(), f"k{self.random.randrange(self.names.keys)}"
        await self.client.pause(queue)
        await self.client.pause(queue, fairness_key=key)
        await asyncio.sleep(0.2)
        await self.client.resume(queue)
        await self.client.resume(queue, fairness_key=key)

    async def purge(self) -> None:
        """Purge a queue, and its dead letters."""
        queue = self._queue()
        await self.client.purge_queue(queue)
        await self.client.purge_queue(queue + DLQ)

    async def cancel(self) -> None:
        """Cancel a message that waits."""
        queue = self._queue()
        message_id = await self.client.enqueue(queue, b"not wanted", delay=60, **self._options())
        await self.client.cancel(queue, message_id)

    async def redrive(self) -> None:
        """Send the dead letters of some queues back."""
        for info in (await self.client.active_queues())[:50]:
            if info.is_dead_letter:
                await self.client.redrive(info.name, self.random.choice((0, 5)))

    async def throttle(self) -> None:
        """Change a throttle."""
        await self.client.set_config(
            f"throttle:provider-{self.random.randrange(5)}:rate", str(self.random.randrange(50, 500))
        )

    async def configure(self) -> None:
        """Set, read and delete an entry of the runtime config."""
        key = f"worn:{self._next() % 50}"
        await self.client.set_config(key, "x" * 100)
        await self.client.get_config(key)
        await self.client.list_config("worn:")
        await self.client.delete_config(key)

    async def post(self) -> None:
        """Enqueue, receive and settle by HTTP, and read the metrics."""
        await asyncio.to_thread(self._post, self._queue())

    def _post(self, queue: str) -> None:
        ask = self._ask
        ask(f"/queues/{queue}/messages", {"payload": "by HTTP", "fairness_key": "http"})
        got = ask(f"/queues/{queue}/receive", {"max_messages": 3})["deliveries"]
        actions = [{"token": each["token"], "action": "ack"} for each in got if each["token"]]
        if actions:
            ask(f"/queues/{queue}/settle", {"deliveries": actions})
        with urlopen(self.dashboard + "/metrics", timeout=60) as response:
            response.read()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        request = HttpRequest(
            self.dashboard + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urlopen(request, timeout=60) as response:
            return json.load(response)

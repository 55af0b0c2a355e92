"""Programs that take messages and settle them, one by one or together, and those that do both ways of a message."""

import asyncio
from random import Random
from typing import Any, Literal

from fila_cluster import Message
from fila_proto_zmq.commands import EndReservation, FetchReserved, RenewReservation, Reserve, Verb
from fila_proto_zmq.errors import BatchError, FilaError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import unpack_record
from tests.simulation.actors.enqueuing import KEYS, WORK_S, EnqueuingPrograms
from tests.simulation.actors.noted_calls import at_place, shortened
from tests.simulation.history import Handed, token_in, token_of
from tests.simulation.world.queues import draw_partitions

CROWD = {"x": 1, "y": 1, "z": 3}
"""Keys of a crowd, with their weights."""
SLOW_S = (0.2, 0.7, 2.5)
"""How long slow programs work on a message: they have messages that wait for them when something happens."""
MADE = "made"
"""The beginning of the names of queues that a template makes."""


class ReceivingPrograms(EnqueuingPrograms):
    """Messages out."""

    async def receive(self, random: Random, queue: str, count: int | None = None) -> None:
        count = count or random.choice([1, 1, 2, 4, 9])
        wait_s = random.choice([0.0, 0.0, 0.3, 2.0])
        record = await self.call(
            "receive", queue, lambda: self.client.receive(queue, count, wait=wait_s), wait_s=wait_s, count=count, wait=wait_s
        )
        if record.ok and record.value:
            self._hand_over(record.value)
            await self.work_on(random, record.value)

    async def consume(self, random: Random, queue: str) -> None:
        if queue in self.consumers:
            return
        prefetch = random.choice([1, 1, 2, 5, 20])
        record = self.history.began(self.process.name, "consume", queue, 0, prefetch=prefetch)
        number = random.getrandbits(32)
        while queue not in self.consumers:  # until it is left
            consumer = self.consumers[queue] = self.client.consume(queue, prefetch=prefetch)
            opened = self.history.opened(prefetch)
            try:
                async for delivery in consumer:
                    self._hand_over([delivery], opened)
                    mood = Random(f"{number} {delivery.id} {delivery.attempts}")
                    if prefetch > 2 and mood.random() < 0.5:
                        self.process.spawn(self.work_on(mood, [delivery]))
                    else:
                        await self.work_on(mood, [delivery])
            except FilaError as error:
                self.history.world.tell(self.process.name, f"#{record.number} consume of {queue} ended: {error.code}")
                self.consumers.pop(queue, None)
                if self.process.client.closed or (
                    not self.options.features & {"delete", "idle_expiry"} and not error.retryable
                ):
                    self.history.ended(record, error=error)
                    return
                await asyncio.sleep(0.7)
            else:
                self.history.ended(record, "left")
                return

    def _hand_over(self, deliveries: list[Any], consumer: int | None = None) -> None:
        for delivery in deliveries:
            lease = delivery._lease
            token = token_in(delivery.headers, delivery.payload)
            handed = Handed(
                self.history.world.now_us, self.process.name, delivery.queue, token, delivery.id, lease.id, delivery._index,
                delivery.attempts, lease.at_most_once, lease.queue, consumer,
            )  # fmt: skip
            self.history.handed.append(handed)
            self.kept.append(delivery)
            self.history.world.tell(
                self.process.name, f"has {token} of {delivery.queue} ({lease.id & 0xFFFFFFFF}.{delivery._index})"
            )

    async def work_on(self, random: Random, deliveries: list[Any]) -> None:
        """Do something with what was delivered, and say so."""
        if self.has("lone_acks") and len(deliveries) > 1 and random.random() < 0.6:
            await asyncio.sleep(random.choice(WORK_S[:4]))
            if random.random() < 0.5:
                await asyncio.gather(*(self.settle(delivery, "ack") for delivery in deliveries))
            else:
                for delivery in deliveries:
                    await self.settle(delivery, "ack")
            return
        if len(deliveries) > 1 and (drawn := random.random()) < 0.4:
            await asyncio.sleep(random.choice(WORK_S))
            nacked = drawn < 0.2 and not (self.quiet or deliveries[0]._lease.at_most_once)
            await self.settle_together("nack" if nacked else "ack", deliveries)
            return
        await asyncio.gather(*(self._work_on_one(Random(random.getrandbits(32)), delivery) for delivery in deliveries))

    async def _work_on_one(self, random: Random, delivery: Any) -> None:
        if self.quiet or self.has("quick"):
            await self.settle(delivery, "ack")
            return
        await asyncio.sleep(random.choice(SLOW_S if self.has("slow") else WORK_S))
        if self.has("extend") and random.random() < 0.2:
            await self.call(
                "extend", delivery.queue, lambda: delivery.extend(2.0), lease=delivery._lease.id, index=delivery._index,
                **at_place(delivery),
            )  # fmt: skip
            await asyncio.sleep(random.choice(WORK_S))
        verb = "ack"
        if self.has("verbs") and not self.quiet:
            verb = random.choices(
                ["ack", "nack", "retry", "fail", "defer", "forget"], [10, 3, 3, 2, 2, int(self.has("forget"))]
            )[0]
        elif random.random() < 0.15:
            verb = "nack"
        if delivery._lease.at_most_once:
            verb = "forget"
        if verb == "forget":
            return
        await self.settle(delivery, verb, random.choice([0.0, 0.3, 2.0]))

    async def settle(self, delivery: Any, verb: str, after_s: float = 0.0) -> None:
        """Settle, and again while that may help."""
        arguments: tuple[Any, ...] = (after_s,) if verb == "retry" else (max(0.2, after_s),) if verb == "defer" else ()
        said: dict[str, Any] = {}
        own = Random(f"{self.options.seed} {delivery._lease.id} {delivery._index} cost")  # other seeds do not shift
        if self.has("priced") and not delivery._lease.at_most_once and own.random() < 0.6:
            delivery.actual_cost = said["actual_cost"] = own.choice([0, 0.5, 4, 9])
        for _ in range(4):
            record = await self.call(
                verb, delivery.queue, lambda: getattr(delivery, verb)(*arguments), token=token_in(delivery.headers, delivery.payload),
                lease=delivery._lease.id, index=delivery._index, **at_place(delivery), **said,
            )  # fmt: skip
            if record.ok or not record.error.retryable or self.client.closed:
                return
            await asyncio.sleep(0.2)

    async def settle_together(self, verb: Literal["ack", "nack"], deliveries: list[Any]) -> list[Any]:
        """Settle many in one call; each is noted as if it had been a call of its own.

        Return those that may be settled again: they were refused for the moment, or there was no answer in time.
        """
        limit_us = round(self.options.timeout_s * 1e6)
        records = [
            self.history.began(
                self.process.name, verb, delivery.queue, limit_us, token=token_in(delivery.headers, delivery.payload),
                lease=delivery._lease.id, index=delivery._index, together=len(deliveries), **at_place(delivery),
            )
            for delivery in deliveries
        ]  # fmt: skip
        errors: list[BaseException | None] = [None] * len(deliveries)
        try:
            await getattr(self.client, verb)(deliveries)
        except BatchError as error:
            errors = list(error.results)
        except FilaError as error:
            errors = [error] * len(deliveries)
        for record, error in zip(records, errors, strict=True):
            self.history.ended(record, error=error)
        return [
            delivery
            for delivery, error in zip(deliveries, errors, strict=True)
            if isinstance(error, FilaError) and error.retryable
        ]

    async def leave(self, random: Random, queue: str) -> None:
        consumer = self.consumers.pop(queue, None)
        if consumer is not None:
            await self.call("leave", queue, consumer.close, wait_s=2.0)

    async def flood(self, random: Random, queue: str) -> None:
        """Many small leases that end together, one by one."""
        await self.enqueue_many(random, queue, random.choice([8, 16, 36]))
        await asyncio.gather(
            *(self._receive_two(Random(random.getrandbits(32)), queue) for _ in range(random.choice([4, 8, 18])))
        )

    async def crowd(self, random: Random, queue: str) -> None:
        """Several keys with a backlog, whose weights stay the same, and somebody who takes a little at a time."""
        pairs: list[tuple[Message, dict[str, Any]]] = []
        for key, weight in CROWD.items():
            for _ in range(random.choice([4, 8, 8]) * min(weight, 3)):
                options: dict[str, Any] = {"fairness_key": key, "weight": weight}
                if self.has("costs") and random.random() < 0.3:
                    options["cost"] = random.choice([0.5, 2])
                pairs.append((Message(self.history.new_token().encode(), None, **options), options))
        random.shuffle(pairs)
        await self._enqueue_pairs(queue, pairs)
        for _ in range(random.choice([4, 8, 12])):
            record = await self.call("receive", queue, lambda: self.client.receive(queue, random.choice([1, 2, 5])))
            if not record.ok or not record.value:
                return
            self._hand_over(record.value)
            await self.settle_together("ack", record.value)

    async def piped(self, random: Random, queue: str) -> None:
        """Send messages without waiting for each, then take batches and ack them without waiting."""
        pairs = [self._message(random) for _ in range(random.choice([2, 6, 20]))]
        batch, most = random.choice([1, 2, 5, 100]), random.choice([1, 4, 100])

        async def produce() -> list[str]:
            producer = self.client.producer(queue, batch=batch, max_outstanding=most)
            futures = [await producer.send(message.payload, message.headers, **options) for message, options in pairs]
            await producer.close()
            results = [future.exception() or future.result() for future in futures]
            if not all(isinstance(result, str) for result in results):
                raise BatchError("some were not accepted", results)
            return [future.result() for future in futures]

        await self._enqueue_pairs(queue, pairs, produce)
        try:
            consumer = self.client.consume_batches(queue, max_messages=random.choice([1, 3, 10]), max_wait=0.05)
        except FilaError:  # closed
            return
        await self._take_batches(random, queue, consumer)

    async def _take_batches(self, random: Random, queue: str, consumer: Any) -> None:
        acks: dict[str, Any] = {}
        failed: dict[str, FilaError] = {}

        def note(error: Exception) -> None:
            if isinstance(error, BatchError):
                failed.update(zip(error.details["message_ids"], filter(None, error.results), strict=True))
            elif isinstance(error, FilaError):  # the client was closed: the last batch was not settled
                failed.update((delivery.id, error) for delivery in deliveries)

        deliveries: Any = ()
        try:
            for _ in range(random.choice([1, 2, 4])):
                deliveries = await asyncio.wait_for(anext(consumer), 1.5)
                self._hand_over(list(deliveries))
                await asyncio.sleep(random.choice(WORK_S[:4]))
                for delivery in deliveries:
                    if delivery.id in acks:
                        await self.settle(delivery, "ack")  # redelivered: told apart from the first time
                    elif not delivery._lease.at_most_once:
                        acks[delivery.id] = self._began_ack(delivery, steps=6)
                await deliveries.ack()
        except (FilaError, TimeoutError, StopAsyncIteration) as error:
            note(error)
        try:
            await consumer.close()
        except FilaError as error:
            note(error)
        for message_id, record in acks.items():
            self.history.ended(record, error=failed.get(message_id))

    def _began_ack(self, delivery: Any, steps: int) -> Any:
        limit_us = round((self.options.timeout_s + 2.0) * steps * 1e6)
        return self.history.began(
            self.process.name, "ack", delivery.queue, limit_us, token=token_in(delivery.headers, delivery.payload),
            lease=delivery._lease.id, index=delivery._index, together=2, **at_place(delivery),
        )  # fmt: skip

    async def cancelled(self, random: Random, queue: str) -> None:
        """Make a call and cancel it after a while, perhaps when it is done already."""
        after_s = random.choice([0.0, 0.0005, 0.003, 0.02, 0.3])
        kind = random.choice(["receive", "receive", "enqueue", "ack"])
        deliveries: list[Any] = []
        said: dict[str, Any] = {}
        if kind == "ack":
            record = await self.call("receive", queue, lambda: self.client.receive(queue, 3), count=3)
            deliveries = record.value if record.ok else []
            self._hand_over(deliveries)
            if not deliveries:
                return
        if kind == "enqueue":
            message, options = self._message(random)
            sent = self._sending(queue, [message], [options])[0]
            said = {"token": sent.token}
        record = self.history.began(
            self.process.name, kind, queue, max(1, round(after_s * 1e6)), cancelled_after=after_s, **said
        )
        if kind == "enqueue":
            sent.call = record
            task = asyncio.ensure_future(self.client.enqueue(queue, message.payload, message.headers, **options))
        elif kind == "receive":
            task = asyncio.ensure_future(self.client.receive(queue, 3, wait=2.0))
        else:
            tokens = [token_in(delivery.headers, delivery.payload) for delivery in deliveries]
            record.said["tokens"] = tokens  # some may be acked, none is known to be
            task = asyncio.ensure_future(self.client.ack(deliveries))
        task.add_done_callback(_look_at)  # its client may die before the program does
        await asyncio.sleep(after_s)
        task.cancel()
        try:
            value = await task
        except (FilaError, asyncio.CancelledError) as error:
            self.history.ended(record, error=error)
        else:
            self.history.ended(record, shortened(value))
            if kind == "enqueue":
                sent.id = value
            elif kind == "receive" and value:
                self._hand_over(value)
                await self.work_on(random, value)
            return
        if kind == "ack":
            await self.settle_together("ack", deliveries)

    async def _receive_two(self, random: Random, queue: str) -> None:
        record = await self.call("receive", queue, lambda: self.client.receive(queue, 2), count=2)
        if record.ok and record.value:
            self._hand_over(record.value)
            for delivery in record.value:
                await self.settle(delivery, "ack")

    async def reserve(self, random: Random, queue: str) -> None:
        """Take a batch under a name, look at it, and end it; perhaps in a roundabout way."""
        name, count = f"r{len(self.history.calls)}", random.choice([1, 3, 8])
        partitions = self.history.spread_of(queue)[0]
        place = {"place": f"{queue}@{Random(name).randrange(partitions)}"} if partitions > 1 else {}
        timeout_ms = random.choice([1000, 3000, 20_000])
        record = await self.command(
            "reserve", queue, Reserve(name, 0, count, timeout_ms, random.choice([0, 300])), wait_s=0.3, **place
        )
        if not record.ok:
            return
        fetched = await self.command("fetch_reserved", queue, FetchReserved(name, 0), **place)
        batches = fetched.value.batches if fetched.ok else []
        records = [unpack_record(data) for batch in batches for data in batch.records]
        tokens, ids = [token_of(each) for each in records], [format_id(each.id_high, each.id_low) for each in records]
        await asyncio.sleep(random.choice(WORK_S))
        if random.random() < 0.3:
            await self.command("renew_reservation", queue, RenewReservation(name, timeout_ms), **place)
        verb = random.choice([Verb.ACK, Verb.ACK, Verb.RELEASE]) if fetched.ok else Verb.RELEASE
        await self.command(
            f"end_reservation_{verb.name.lower()}", queue, EndReservation(name, verb), tokens=tokens, ids=ids, **place
        )

    async def debounce(self, random: Random, queue: str) -> None:
        """Replace messages of queues that a template makes, and take some of them."""
        name = f"{MADE}{random.randrange(2)}"
        if random.random() < 0.5 or not self.history.saw("put_template"):
            idle_s = random.choice([0.2, 1.0, 60.0])
            spread = draw_partitions(self.options.seed, MADE, {}) if self.has("partitions") else {}
            if spread and self.options.hosts is not None:  # else a queue may be gone before its first message is there
                idle_s = max(idle_s, 1.0)
            self.history.made |= {f"{MADE}{number}": spread for number in range(2)}
            await self.call(
                "put_template", "", lambda: self.client.put_template(f"{MADE}*", idle_expiry=idle_s, **spread),
                idle_expiry=idle_s, **spread,
            )  # fmt: skip
        for _ in range(random.choice([3, 5, 9])):
            await self._replace_one(random, name)
            await asyncio.sleep(random.choice(WORK_S[:5]))
            if random.random() < 0.4:
                record = await self.call("receive", name, lambda: self.client.receive(name, 2), count=2)
                if record.ok and record.value:
                    self._hand_over(record.value)
                    for delivery in record.value:
                        await self.settle(delivery, random.choice(["ack", "ack", "nack"]))

    async def _replace_one(self, random: Random, queue: str) -> None:
        options: dict[str, Any] = {
            "fairness_key": random.choice(KEYS), "dedup_id": f"b{random.randrange(3)}", "dedup_mode": "last",
            "delay": random.choice([0.0, 0.0, 0.3, 1.0]),
        }  # fmt: skip
        token = self.history.new_token()
        [sent] = self._sending(queue, [Message(token.encode())], [options])
        padding = {"padding": "." * random.choice([1, 300])}
        record = await self.call(
            "enqueue", queue, lambda: self.client.enqueue(queue, token.encode(), padding, **options), token=token, **options
        )
        sent.call = record
        if record.ok:
            sent.id = record.value


def _look_at(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()

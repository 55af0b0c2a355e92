"""What the clients' programs do: the library's public API, at random, and a note of each call and of how it ended."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal

from fila_cluster import Message
from fila_cluster.client.calls.request import Request
from fila_proto_zmq.commands import (
    Command,
    DrainWorker,
    EndReservation,
    FetchReserved,
    MoveShard,
    RenewReservation,
    Reserve,
    Verb,
)
from fila_proto_zmq.errors import BatchError, FilaError, QueueExistsError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import unpack_record
from tests.simulation.actors.clients import ClientProcess
from tests.simulation.history import BatchSeen, Done, Handed, History, Sent, token_in, token_of
from tests.simulation.options import Options
from tests.simulation.world.queues import APART, TICKS

KEYS = ("a", "b", "c", "d")
CROWD = {"x": 1, "y": 1, "z": 3}
"""Keys of a crowd, with their weights."""
WORK_S = (0.0, 0.0, 0.001, 0.05, 0.4, 2.5)
"""How long a program works on a message."""
SLOW_S = (0.2, 0.7, 2.5)
"""The same for slow programs: they have messages that wait for them when something happens."""
STEPS_LIMIT_S = 600.0
MADE = "made"
"""The beginning of the names of queues that a template makes."""


class Programs:
    """The programs of one client process."""

    def __init__(self, process: ClientProcess, history: History, options: Options) -> None:
        self.process = process
        self.client = process.client
        self.history = history
        self.options = options
        self.has = options.features.__contains__
        self.consumers: dict[str, Any] = {}
        self.quiet = False
        """From now on everything that comes is acked at once."""
        self.kept: list[Any] = []
        """What the program has in hand, and what it has settled: nothing is collected before the end of the run."""
        self.holds: dict[tuple[str, str, int], int] = {}

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self, kind: str, queue: str, ask: Callable[[], Awaitable[Any]], *, wait_s: float = 0.0, asks: int = 1, **said: Any
    ) -> Any:
        """Make a call and note it; returns its record."""
        limit_us = round((self.options.timeout_s * asks + wait_s) * 1e6)
        record = self.history.began(self.process.name, kind, queue, limit_us, **said)
        try:
            value = await ask()
        except FilaError as error:
            self.history.ended(record, error=error)
        else:
            self.history.ended(record, _brief(value))
            record.value = value
        return record

    # --- messages in ---------------------------------------------------------------------------------------------------

    async def enqueue(self, random: Random, queue: str) -> None:
        message, options = self._message(random)
        sent = self._sending(queue, [message], [options])
        record = await self.call(
            "enqueue", queue,
            lambda: self.client.enqueue(queue, message.payload, message.headers, **options), token=sent[0].token, **options,
        )  # fmt: skip
        sent[0].call = record
        if record.ok:
            sent[0].id = record.value

    async def twins(self, random: Random, queue: str) -> None:
        """The same message twice within a moment, as after an answer that was lost."""
        number = random.getrandbits(32)
        first, second = (Random(number) for _ in range(2))
        await asyncio.gather(
            self.enqueue(first, queue), self._later(random.choice([0.0, 0.002, 0.01]), self.enqueue(second, queue))
        )

    @staticmethod
    async def _later(delay_s: float, program: Awaitable[Any]) -> None:
        await asyncio.sleep(delay_s)
        await program

    async def debounce(self, random: Random, queue: str) -> None:
        """Replace messages of queues that a template makes, and take some of them."""
        name = f"{MADE}{random.randrange(2)}"
        if random.random() < 0.5 or not self.history.saw("put_template"):
            idle_s = random.choice([0.2, 1.0, 60.0])
            await self.call(
                "put_template", "", lambda: self.client.put_template(f"{MADE}*", idle_expiry=idle_s), idle_expiry=idle_s
            )
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

    async def enqueue_many(self, random: Random, queue: str, count: int | None = None) -> None:
        pairs = [self._message(random) for _ in range(count or random.choice([2, 3, 5, 12, 30]))]
        if random.random() < 0.5:
            shared = self._message(random)[1]
            pairs = [(Message(pair[0].payload, pair[0].headers, **shared), dict(shared)) for pair in pairs]
            for index, (_, options) in enumerate(pairs):
                if options.get("dedup_id"):
                    options["dedup_id"] += f"-{index}"
            pairs = [(Message(message.payload, message.headers, **options), options) for message, options in pairs]
        await self._enqueue_pairs(queue, pairs)

    async def _enqueue_pairs(
        self, queue: str, pairs: list[tuple[Message, dict[str, Any]]], piped: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        """``piped``: what enqueues them, if it is not ``enqueue_many``."""
        messages = [message for message, _ in pairs]
        sent = self._sending(queue, messages, [options for _, options in pairs])
        # A frame's time begins anew with each progress. A producer may have room for one message at a time, and a frame that
        # is stored in steps may be cut after each of them.
        in_steps = self.has("hooks") or len(pairs) > self.options.shard_settings.limits.enqueue_step_messages
        frames = 3 if piped is None and not in_steps else 1 + len(pairs)
        record = await self.call(
            "enqueue_many", queue, piped or (lambda: self.client.enqueue_many(queue, messages)), asks=frames,
            tokens=f"{sent[0].token}..{sent[-1].token}", first=pairs[0][1],
        )  # fmt: skip
        results: list[Any] = []
        if record.ok:
            results = record.value
        elif isinstance(record.error, BatchError):
            results = record.error.results
        for each, result in zip(sent, results, strict=False):
            each.call = record
            if isinstance(result, str):
                each.id = result
        for each in sent:
            each.call = record

    async def together(self, random: Random, queue: str) -> None:
        """Enqueue a batch of messages into some queues, with a callback; sometimes give it up, or leave it open."""
        token = self.history.new_token()
        names = [name for name in sorted(self.history.queues) if not name.startswith(APART)]
        callback = Message(token.encode(), fairness_key=random.choice(KEYS))
        self._sending(queue, [callback], [{"fairness_key": callback.fairness_key}])  # one whose answer never comes
        seen = self.history.batches[token] = BatchSeen()
        batch = self.client.batch(callback, queue)
        if not (await self.call("open_batch", queue, batch.__aenter__, batch=token)).ok:
            return
        for _ in range(random.choice([0, 1, 2, 3])):
            name = random.choice(names)
            pairs = [self._message(random) for _ in range(random.choice([1, 3, 8]))]
            seen.members += [bytes(message.payload).decode() for message, _ in pairs]
            messages = [message for message, _ in pairs]
            await self._enqueue_pairs(
                name,
                pairs,
                lambda name=name, messages=messages: batch.enqueue_many(name, messages),  # type: ignore[misc]
            )
            await asyncio.sleep(random.choice(WORK_S[:4]))
        end = random.random()
        if end < 0.1:
            await self.call(
                "abandon_batch", queue, lambda: batch.__aexit__(FilaError, FilaError("given up"), None), batch=token
            )
        elif end < 0.95:
            for _ in range(4):
                began = self.call("seal_batch", queue, batch.seal, batch=token)
                seen.seal = Done(-1, self.process.name, "seal_batch", queue, self.history.world.now_us, {})
                seen.seal = await began
                if seen.seal.ok or not getattr(seen.seal.error, "retryable", False) or self.client.closed:
                    return
                await asyncio.sleep(0.2)

    def _sending(self, queue: str, messages: list[Message], options: list[dict[str, Any]]) -> list[Sent]:
        """Note messages that are about to be sent. Until their call returns it is one that never did."""
        unfinished = Done(-1, self.process.name, "enqueue", queue, self.history.world.now_us, {})
        sent = []
        for message, chosen in zip(messages, options, strict=True):
            token = bytes(message.payload).decode()
            record = self.history.sent[token] = Sent(token, queue, unfinished, chosen)
            sent.append(record)
        return sent

    def _message(self, random: Random) -> tuple[Message, dict[str, Any]]:
        has = self.has
        token = self.history.new_token()
        options: dict[str, Any] = {"fairness_key": random.choice(KEYS)}
        if has("priorities") and random.random() < 0.4:
            options["priority"] = random.choice([-5, -1, 1, 3, 7])
        if has("delays") and random.random() < 0.3:
            options["delay"] = random.choice([0.05, 0.5, 1.0, 3.0])
        if has("ttl") and random.random() < 0.3:
            options["ttl"] = random.choice([0.2, 1.0, 4.0])
        if has("weights") and random.random() < 0.3:
            options["weight"] = random.choice([1, 2, 5])
        if has("costs") and random.random() < 0.3:
            options["cost"] = random.choice([0.3, 2.5, 7])
        if has("throttles") and random.random() < 0.5:
            options["throttle_keys"] = random.choice([["t0"], ["t1"], ["t0", "t1"]])
        if has("dedup") and random.random() < 0.4:
            options["dedup_id"] = f"d{random.randrange(6)}"
        if random.random() < 0.1:
            options["lease"] = random.choice([1.2, 3.0])
        own = Random(f"{self.options.seed} {token} cap")  # other seeds do not shift
        if has("own_caps") and "dedup_id" not in options and own.random() < 0.3:
            options["max_attempts"] = own.choice([1, 2, 3])
        headers = {"tenant": random.choice("xyz")} if has("hooks") else None
        if has("large") and random.random() < 0.5:
            headers = {**(headers or {}), "padding": "." * 600}
        if headers is not None and random.random() < 0.3:
            headers[random.choice(["bad", "urgent", "late"])] = "1"
        return Message(token.encode(), headers, **options), options

    # --- messages out --------------------------------------------------------------------------------------------------

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
            try:
                async for delivery in consumer:
                    self._hand_over([delivery])
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

    def _hand_over(self, deliveries: list[Any]) -> None:
        for delivery in deliveries:
            lease = delivery._lease
            token = token_in(delivery.headers, delivery.payload)
            handed = Handed(
                self.history.world.now_us, self.process.name, delivery.queue, token, delivery.id, lease.id, delivery._index,
                delivery.attempts, lease.at_most_once,
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
                "extend", delivery.queue, lambda: delivery.extend(2.0), lease=delivery._lease.id, index=delivery._index
            )
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
        for _ in range(4):
            record = await self.call(
                verb, delivery.queue, lambda: getattr(delivery, verb)(*arguments), token=token_in(delivery.headers, delivery.payload),
                lease=delivery._lease.id, index=delivery._index,
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
                lease=delivery._lease.id, index=delivery._index, together=len(deliveries),
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
            lease=delivery._lease.id, index=delivery._index, together=2,
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
        await asyncio.sleep(after_s)
        task.cancel()
        try:
            value = await task
        except (FilaError, asyncio.CancelledError) as error:
            self.history.ended(record, error=error)
        else:
            self.history.ended(record, _brief(value))
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
        timeout_ms = random.choice([1000, 3000, 20_000])
        record = await self._command(
            "reserve", queue, Reserve(name, 0, count, timeout_ms, random.choice([0, 300])), wait_s=0.3
        )
        if not record.ok:
            return
        fetched = await self._command("fetch_reserved", queue, FetchReserved(name, 0))
        batches = fetched.value.batches if fetched.ok else []
        records = [unpack_record(data) for batch in batches for data in batch.records]
        tokens, ids = [token_of(each) for each in records], [format_id(each.id_high, each.id_low) for each in records]
        await asyncio.sleep(random.choice(WORK_S))
        if random.random() < 0.3:
            await self._command("renew_reservation", queue, RenewReservation(name, timeout_ms))
        verb = random.choice([Verb.ACK, Verb.ACK, Verb.RELEASE]) if fetched.ok else Verb.RELEASE
        await self._command(f"end_reservation_{verb.name.lower()}", queue, EndReservation(name, verb), tokens=tokens, ids=ids)

    async def _command(self, kind: str, queue: str, command: Any, *, wait_s: float = 0.0, **said: Any) -> Done:
        record: Done = await self.call(
            kind, queue, lambda: self.client.request(Request(queue, command)), wait_s=wait_s, command=str(command), **said
        )
        return record

    # --- queues ---------------------------------------------------------------------------------------------------------

    async def create(self, queue: str, options: dict[str, Any]) -> None:
        """Create a queue, and again until it is there."""
        for _ in range(100):
            record = await self.call("create_queue", queue, lambda: self.client.create_queue(queue, **options), **options)
            if record.ok or isinstance(record.error, QueueExistsError) or self.client.closed:
                return
            await asyncio.sleep(0.3)

    async def delete(self, random: Random, queue: str) -> None:
        await self.call("delete_queue", queue, lambda: self.client.delete_queue(queue, force=True), force=True)
        await asyncio.sleep(random.choice([0.0, 0.3]))
        await self.create(queue, self.history.queues[queue])

    async def brief(self, random: Random, queue: str) -> None:
        """A queue that hardly lives: made, filled and deleted within a moment."""
        name = f"brief{random.randrange(3)}"
        self.history.queues.setdefault(name, {})
        await asyncio.gather(
            self.call("create_queue", name, lambda: self.client.create_queue(name)),
            self.enqueue(random, name),
            self.call("delete_queue", name, lambda: self.client.delete_queue(name, force=True), force=True),
        )
        await self.call("delete_queue", name, lambda: self.client.delete_queue(name, force=True), force=True)

    async def update(self, random: Random, queue: str) -> None:
        change: dict[str, Any] = random.choice([{"max_attempts": 3}, {"max_attempts": None}, {"visibility_timeout": 2.0}])
        await self.call("update_queue", queue, lambda: self.client.update_queue(queue, **change), **change)

    async def purge(self, random: Random, queue: str) -> None:
        key = random.choice([None, *KEYS])
        await self.call("purge_queue", queue, lambda: self.client.purge_queue(queue, fairness_key=key), asks=20, key=key)

    async def pause(self, random: Random, queue: str) -> None:
        key = random.choice([None, *KEYS])
        await self.call("pause", queue, lambda: self.client.pause(queue, fairness_key=key), key=key)

    async def resume(self, random: Random, queue: str) -> None:
        key = random.choice([None, *KEYS])
        await self.call("resume", queue, lambda: self.client.resume(queue, fairness_key=key), key=key)

    async def redrive(self, random: Random, queue: str) -> None:
        target = dead_letters_of(queue, self.history.queues[queue])
        if target is not None:
            count = random.choice([0, 1, 3])
            await self.call("redrive", target, lambda: self.client.redrive(target, count), asks=20, count=count)

    async def cancel(self, random: Random, queue: str) -> None:
        mine = [sent for sent in self.history.sent.values() if sent.queue == queue and sent.id]
        if mine:
            sent = random.choice(mine)
            assert sent.id is not None
            await self.call("cancel", queue, lambda: self.client.cancel(queue, sent.id), token=sent.token)

    async def browse(self, random: Random, queue: str) -> None:
        name = random.choice([queue, f"{queue}.dlq"])
        state = random.choice([None, "pending", "leased", "delayed"])
        await self.call("browse", name, lambda: self.client.browse(name, limit=20, state=state), asks=20, state=state)

    async def stats(self, random: Random, queue: str) -> None:
        await self.call("queue_stats", queue, lambda: self.client.queue_stats(queue), asks=20)
        await self.call("list_queues", "", self.client.list_queues)

    async def why(self, random: Random, queue: str) -> None:
        key = random.choice([None, *KEYS])
        await self.call("why", queue, lambda: self.client.why(queue, fairness_key=key), asks=3, key=key)

    async def throttle(self, random: Random, queue: str) -> None:
        """A limit, with little tokens; or none."""
        name = random.choice(["t0", "t1"])
        rate, burst = random.choice([(5, 5), (20, 2), (50, 1), (0, 0), (2, 10), (None, None)])
        key = f"throttle.{name}"
        if rate is None:
            await self.call("delete_config", "", lambda: self.client.delete_config(key), key=key)
        else:
            value = f"{rate},{burst}"
            await self.call("set_config", "", lambda: self.client.set_config(key, value), key=key, value=value)

    async def config(self, random: Random, queue: str) -> None:
        key, value = f"app:{random.randrange(3)}", str(random.randrange(100))
        await self.call("set_config", "", lambda: self.client.set_config(key, value), key=key, value=value)
        await self.call("get_config", "", lambda: self.client.get_config(key), key=key)

    async def move(self, random: Random, queue: str) -> None:
        """An operator has a shard moved, or a worker drained."""
        layout = self.options.layout
        worker = f"worker-{random.randrange(len(layout))}"
        command: Command
        if random.random() < 0.7:
            command = MoveShard(random.randrange(sum(map(len, layout))), worker)
        else:
            command = DrainWorker(worker, undo=random.random() < 0.5)
        await self.call("move", "", lambda: self.client.request(command), command=command)

    async def timed(self, random: Random, queue: str) -> None:
        """Make, change or delete a schedule."""
        name = f"s{random.randrange(4)}"
        if random.random() < 0.15:
            await self.call("delete_schedule", name, lambda: self.client.delete_schedule(name))
            return
        every = random.choice([1.0, 1.0, 1.5, 2.25])
        cron = random.choice([None, None, "* * * * * *", "*/2 * * * * *"])
        rule: dict[str, Any] = {"cron": cron} if cron else {"every": every}
        options = {"jitter": random.choice([0.0, 0.0, 0.8]), "catch_up": "all", "fairness_key": random.choice(KEYS)}
        await self.call(
            "put_schedule", name, lambda: self.client.put_schedule(name, TICKS, b"tick", **rule, **options), **rule
        )  # fmt: skip

    async def close(self, random: Random, queue: str) -> None:
        """Leave in good order; another client comes in its place (the run sees to that)."""
        await self.call("close", "", self.client.close, wait_s=2.0)
        self.process.closed_us = self.history.world.now_us


def dead_letters_of(queue: str, options: dict[str, Any]) -> str | None:
    """Where a queue's dead letters go."""
    target = options.get("dead_letter", "dlq")
    return f"{queue}.dlq" if target == "dlq" else None if target == "discard" else str(target)


def _brief(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} things"
    return value


def collect() -> None:
    """Collect garbage between runs, where it disturbs nothing."""
    gc.collect()

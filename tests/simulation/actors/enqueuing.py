"""Programs that enqueue messages: alone, in batches, twice, with a callback."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from fila_cluster import Message
from fila_proto_zmq.errors import BatchError, FilaError
from tests.simulation.actors.noted_calls import NotedCalls
from tests.simulation.history import BatchSeen, Done, Sent
from tests.simulation.world.queues import APART

KEYS = ("a", "b", "c", "d")
WORK_S = (0.0, 0.0, 0.001, 0.05, 0.4, 2.5)
"""How long a program works on a message."""


class EnqueuingPrograms(NotedCalls):
    """Messages in."""

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
        if (has("throttles") or has("limits")) and random.random() < 0.5:
            options["throttle_keys"] = random.choice([["t0"], ["t1"], ["t0", "t1"]])
        if has("dedup") and random.random() < 0.4:
            options["dedup_id"] = f"d{random.randrange(6)}"
        if random.random() < 0.1:
            options["lease"] = random.choice([1.2, 3.0])
        own = Random(f"{self.options.seed} {token} cap")  # other seeds do not shift
        if has("own_caps") and "dedup_id" not in options and own.random() < 0.3:
            options["max_attempts"] = own.choice([1, 2, 3])
        placed = Random(f"{self.options.seed} {token} places")
        if has("concurrency") and "throttle_keys" not in options and placed.random() < 0.6:
            options["throttle_keys"] = placed.choice([["t0"], ["t0"], ["t1"], ["t0", "t1"]])
        headers = {"tenant": random.choice("xyz")} if has("hooks") else None
        if has("large") and random.random() < 0.5:
            headers = {**(headers or {}), "padding": "." * 600}
        if headers is not None and random.random() < 0.3:
            headers[random.choice(["bad", "urgent", "late"])] = "1"
        return Message(token.encode(), headers, **options), options

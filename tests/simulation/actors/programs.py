"""What the clients' programs do: the library's public API, at random, and a note of each call and of how it ended."""

import asyncio
import gc
from random import Random
from typing import Any

from fila_cluster.client.calls.cluster import describe_throttle
from fila_proto_zmq.commands import Command, DrainWorker, MoveShard
from fila_proto_zmq.errors import QueueExistsError
from tests.simulation.actors.enqueuing import KEYS
from tests.simulation.actors.receiving import ReceivingPrograms
from tests.simulation.world.queues import APART, ASIDE, TICKS, draw_partitions


class Programs(ReceivingPrograms):
    """The programs of one client process."""

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
        options = draw_partitions(self.options.seed, name, {}) if self.has("partitions") else {}
        self.history.queues.setdefault(name, options)
        await asyncio.gather(
            self.call("create_queue", name, lambda: self.client.create_queue(name, **options), **options),
            self.enqueue(random, name),
            self.call("delete_queue", name, lambda: self.client.delete_queue(name, force=True), force=True),
        )
        await self.call("delete_queue", name, lambda: self.client.delete_queue(name, force=True), force=True)

    async def update(self, random: Random, queue: str) -> None:
        change: dict[str, Any] = random.choice([{"max_attempts": 3}, {"max_attempts": None}, {"visibility_timeout": 2.0}])
        await self.call("update_queue", queue, lambda: self.client.update_queue(queue, **change), **change)

    async def in_flight(self, random: Random, queue: str) -> None:
        """Raise, lower or lift the limit on the leased messages of a queue."""
        most = random.choice([None, 1, 2, 5])
        await self.call(
            "update_queue", queue, lambda: self.client.update_queue(queue, max_in_flight=most), max_in_flight=most
        )

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

    async def aside(self, random: Random, queue: str) -> None:
        """Move the backlog of a queue, or of one of its keys, to another queue."""
        others = sorted(name for name in self.history.queues if name != queue and not name.startswith(APART))
        target = ASIDE if random.random() < 0.6 and queue != ASIDE else random.choice(others)
        key, count = random.choice([None, *KEYS]), random.choice([0, 0, 1, 3])
        rate = random.choice([None, None, 20.0])
        await self.call(
            "set_aside", queue, lambda: self.client.move(queue, target, fairness_key=key, count=count, rate=rate),
            asks=20, wait_s=10.0, target=target, key=key, count=count,
        )  # fmt: skip

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

    async def limits(self, random: Random, queue: str) -> None:
        """Set or delete limits of throttle keys or of a pattern by their own calls, or list them."""
        name = random.choice(["t0", "t1", "t*", "t*"])
        what = random.random()
        if what < 0.4:
            await self.call("list_throttles", "", self.client.list_throttles, asks=6)
        elif what < 0.55:
            await self.call("delete_throttle", "", lambda: self.client.delete_throttle(name), asks=4, key=name)
        else:
            rate, burst = random.choice([(5, 5), (20, 2), (50, 1), (2, 10)])
            least = 1 if Random(random.getrandbits(32)).random() < 0.6 else None
            await self.call(
                "set_throttle", "", lambda: self.client.set_throttle(name, rate=rate, burst=burst, rate_min=least), asks=3,
                key=name, value=f"{rate},{burst}", least=least,
            )  # fmt: skip

    async def partitions(self, random: Random, queue: str) -> None:
        """Take from several queues at once, whatever their partitions are."""
        names = sorted(name for name in self.history.queues if not name.startswith(APART))
        queues = {name: random.choice([1, 2, 6]) for name in random.sample(names, min(len(names), random.choice([1, 2, 3])))}
        wait_s = random.choice([0.0, 0.3, 2.0])
        record = await self.call(
            "receive_any", "", lambda: self.client.receive_any(queues, wait=wait_s), wait_s=wait_s, queues=queues
        )
        if record.ok and record.value:
            self._hand_over(record.value)
            await self.work_on(random, record.value)

    async def repartition(self, random: Random, queue: str) -> None:
        """Change the number of partitions of a queue, also of one that has none."""
        number = random.choice([1, 2, 2, 3, 4, 5])
        await self.call(
            "update_queue", queue, lambda: self.client.update_queue(queue, partitions=number), asks=3, partitions=number
        )

    async def concurrency(self, random: Random, queue: str) -> None:
        """A limit on the leased messages of a throttle key, or of each key of a pattern, over the cluster; or none."""
        name = random.choice(["t0", "t1"])
        most = random.choice([None, "0", "1", "1", "2", "2", "5"])
        again = random.choice([None, "1", "2"]) if most is None else most
        if Random(f"{self.options.seed} {name} {most} {again}").random() < 0.3:  # other seeds do not shift
            name = "t*"
        key = f"throttle:{name}:concurrency"
        if most is None:
            await self.call("delete_config", "", lambda: self.client.delete_config(key), key=key)
            await asyncio.sleep(random.choice([0.0, 0.2, 1.0]))
        if again is not None:
            await self.call("set_config", "", lambda: self.client.set_config(key, again), key=key, value=again)

    async def holders(self, random: Random, queue: str) -> None:
        """Ask which messages with a throttle key are leased."""
        key = random.choice(["t0", "t1"])
        await self.call("describe_throttle", "", lambda: describe_throttle(self.client, key), key=key)

    async def limit_concurrency(self, random: Random) -> None:
        """The limits on leased messages with which a run begins."""
        for name in ("t0", "t1"):
            if random.random() < 0.8:
                key, most = f"throttle:{name}:concurrency", str(random.choice([1, 2, 3]))
                await self.call(
                    "set_config", "", lambda key=key, most=most: self.client.set_config(key, most), key=key, value=most
                )

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


def collect() -> None:
    """Collect garbage between runs, where it disturbs nothing."""
    gc.collect()

"""Change the limits of one of two tenants while both have a backlog, and watch how many of their calls run.

    python examples/tenant_limits.py [--picture FILE] [--endpoint ENDPOINT]

A pattern lets each tenant have four calls at a time. After three seconds the first tenant gets twelve, after six seconds a
rate of 40 calls a second as well. The second one keeps its four throughout, and notices nothing.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from fila_cluster import AsyncClient, AsyncDelivery, Message

QUEUE: Final = "calls"
TENANTS: Final = ("acme", "globex")
CALLS: Final = 800
"""Of each tenant: more than are done."""
CALL_S: Final = (0.1, 0.3)
"""How long a call takes, from and to."""
PHASE_S: Final = 3.0
SAMPLE_S: Final = 0.1
SHOWN_S: Final = 0.5


class Watch:
    """How many calls run now, how many have begun, and how many have run at most at a time, by tenant."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.samples: list[tuple[float, Counter[str], Counter[str]]] = []
        """Seconds since the beginning, with what ran then, and what had begun."""

    def begin(self, tenant: str) -> None:
        """Note that a call begins."""
        self.running[tenant] += 1
        self.begun[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.running[tenant])

    async def sample(self) -> None:
        """Keep the counts, again and again, until cancelled."""
        start = time.monotonic()
        while True:
            self.samples.append((time.monotonic() - start, self.running.copy(), self.begun.copy()))
            await asyncio.sleep(SAMPLE_S)

    def rates(self, tenant: str) -> list[tuple[float, float]]:
        """Return the calls a second, over a second each, with the time in its middle."""
        width = round(1.0 / SAMPLE_S)
        pairs = zip(self.samples, self.samples[width:], strict=False)
        return [
            ((first[0] + last[0]) / 2, (last[2][tenant] - first[2][tenant]) / (last[0] - first[0])) for first, last in pairs
        ]


async def fill(client: AsyncClient) -> None:
    """Make the queue, and put the backlog of both tenants into it."""
    await client.create_queue(QUEUE)
    await client.set_throttle("tenant:*", concurrency=4)
    for tenant in TENANTS:
        calls = [Message(b"", fairness_key=tenant, throttle_keys=[f"tenant:{tenant}"]) for _ in range(CALLS)]
        await client.enqueue_many(QUEUE, calls)


async def work(client: AsyncClient, watch: Watch) -> None:
    """Run each call that the broker delivers, until cancelled: the limits are the broker's."""

    async def call(delivery: AsyncDelivery) -> None:
        watch.begin(delivery.fairness_key)
        await asyncio.sleep(random.uniform(*CALL_S))
        watch.running[delivery.fairness_key] -= 1
        await delivery.ack()

    async with asyncio.TaskGroup() as group, client.consume(QUEUE, prefetch=100) as deliveries:
        async for delivery in deliveries:
            group.create_task(call(delivery))


async def run(client: AsyncClient) -> Watch:
    """Change the limits in three phases. Print how many calls ran at a time in each."""
    watch = Watch()
    jobs = [asyncio.create_task(work(client, watch)), asyncio.create_task(watch.sample())]
    for limits in ({}, {"concurrency": 12}, {"rate": 40, "burst": 2}):
        if limits:
            await client.set_throttle("tenant:acme", **limits)
        watch.most.clear()
        await asyncio.sleep(PHASE_S)
        changed = ", ".join(f"{name} {value}" for name, value in limits.items()) or "the pattern's 4 for each"
        print(f"{changed}: at most " + " and ".join(f"{watch.most[tenant]} of {tenant}" for tenant in TENANTS))
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    return watch


def show(watch: Watch) -> None:
    """Print the calls that ran, as bars."""
    for at_s, running, _ in watch.samples[:: round(SHOWN_S / SAMPLE_S)]:
        print(f"{at_s:4.1f} s  " + "  ".join(f"{tenant} {'█' * running[tenant]:12}" for tenant in TENANTS))


def draw(watch: Watch, path: Path) -> None:
    """Draw the calls that ran, and their rates, into a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - needed for --picture only

    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for tenant, colour in zip(TENANTS, ("#2f6f8f", "#c2703d"), strict=True):
        times = [at_s for at_s, _, _ in watch.samples]
        above.step(times, [running[tenant] for _, running, _ in watch.samples], color=colour, label=tenant, where="post")
        below.plot(*zip(*watch.rates(tenant), strict=True), color=colour)
    above.set_ylabel("calls at a time")
    below.set_ylabel("calls a second")
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])  # room for the texts
        axes.spines[["top", "right"]].set_visible(False)
        for phase, text in ((1, "acme: concurrency 12"), (2, "acme: rate 40")):
            axes.axvline(phase * PHASE_S, color="#888888", linewidth=0.8)
            if axes is above:
                axes.annotate(text, (phase * PHASE_S, 1), xycoords=("data", "axes fraction"), xytext=(4, -4), va="top", fontsize=8,
                              textcoords="offset points")  # fmt: skip
    above.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


async def main() -> None:
    """Fill the queue, change limits, and show what became of the calls."""
    parser = argparse.ArgumentParser(description="Limits of two tenants, changed while they work")
    parser.add_argument("--picture", type=Path, help="draw the calls into this file (needs matplotlib)")
    parser.add_argument("--endpoint")
    arguments = parser.parse_args()
    async with AsyncClient(arguments.endpoint) as client:
        await fill(client)
        try:
            watch = await run(client)
        finally:
            for key in ("tenant:*", "tenant:acme"):
                await client.delete_throttle(key)
            await client.delete_queue(QUEUE, force=True)
    show(watch)
    if arguments.picture:
        draw(watch, arguments.picture)


if __name__ == "__main__":
    asyncio.run(main())

"""Measure the enqueue rate with and without ``on_enqueue``, in turns, in batches of 100.

    python benchmarks/hook_throughput.py [--messages 50000] [--rounds 7]

The script reads two headers and returns three fields; without the script the producer sets the same options. Rounds alternate on one broker,
so that other work on the machine affects all of them alike. Headers mostly repeat (a tenant, a plan), and then a decision is recalled; so
there are rounds with headers that all differ, too, where each decision is made. The goal is at least 80 % of the rate without a hook.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from cluster import OneCluster
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fila_cluster import AsyncClient, Message

HOOK = """
function on_enqueue(msg)
  return {
    fairness_key = msg.headers.tenant,
    weight = msg.headers.plan == "pro" and 3 or 1,
    throttle_keys = { "tenant:" .. msg.headers.tenant },
  }
end
"""
BATCH = 100
IN_FLIGHT = 4
SHARE_MIN = 0.8
PAYLOAD = b"x" * 1024


KINDS = ("no hook", "hook, headers repeat", "hook, headers all differ")


def batch(number: int, kind: str) -> list[Message]:
    """Return a batch of ten tenants' messages; without a hook, with the options that the hook would choose."""
    messages = []
    for index in range(BATCH):
        tenant = f"tenant-{(number + index) % 10}"
        headers = {"tenant": tenant, "plan": "pro"}
        if kind == "hook, headers all differ":
            headers["request"] = str(number * BATCH + index)
        options = {"fairness_key": tenant, "weight": 3, "throttle_keys": [f"tenant:{tenant}"]} if kind == "no hook" else {}
        messages.append(Message(PAYLOAD, headers, **options))  # type: ignore[arg-type]
    return messages


async def rate(client: AsyncClient, queue: str, total: int, kind: str) -> float:
    """Return messages a second. The batches are made beforehand."""
    batches = [batch(number, kind) for number in range(total // BATCH)]
    start = time.perf_counter()
    waiting: set[asyncio.Task[list[str]]] = set()
    for messages in batches:
        waiting.add(asyncio.ensure_future(client.enqueue_many(queue, messages)))
        if len(waiting) == IN_FLIGHT:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)
    return total / (time.perf_counter() - start)


async def measure(cluster: OneCluster, total: int, rounds: int, console: Console) -> dict[str, list[tuple[float, float]]]:
    """Return the rate of each round, and the worker's CPU in µs a message, by kind."""
    results: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    async with AsyncClient(cluster.endpoint, timeout=60) as client:
        for _ in track(range(rounds), "enqueueing", console=console, transient=True):
            for kind in KINDS:
                await client.create_queue("measured", on_enqueue=None if kind == "no hook" else HOOK)
                before = cluster.cpu_seconds()["worker"]
                reached = await rate(client, "measured", total, kind)
                results[kind].append((reached, (cluster.cpu_seconds()["worker"] - before) / total * 1e6))
                await client.delete_queue("measured", force=True)
    return results


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-hooks-") as directory, OneCluster(Path(directory)) as cluster:
        results = asyncio.run(measure(cluster, arguments.messages, arguments.rounds, console))
    table = Table("batches of 100", "median", "min … max", "worker CPU", "left")
    left = {}
    for kind in KINDS:
        rates = [reached for reached, _ in results[kind]]
        cpu = statistics.median(each for _, each in results[kind])
        left[kind] = statistics.median(each / other for each, (other, _) in zip(rates, results["no hook"], strict=True))
        span = f"{min(rates):,.0f} … {max(rates):,.0f}"
        table.add_row(kind, f"{statistics.median(rates):,.0f}/s", span, f"{cpu:.1f} µs", f"{left[kind]:.0%}")
    console.print(table)
    good = left["hook, headers repeat"] >= SHARE_MIN
    console.print(f"the hook leaves {left['hook, headers repeat']:.0%} (at least {SHARE_MIN:.0%})")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()

"""What a hook leaves of the enqueue rate: batches of 100, with and without ``on_enqueue``, in turns.

    python benchmarks/hook_throughput.py [--messages 50000] [--rounds 7]

The script reads two headers and returns three fields. Both queues are of one broker, and rounds alternate, so that what else the
machine does hits both alike. At least 80 % of the rate without a hook must be left.
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


def batch(number: int, *, decided: bool) -> list[Message]:
    """A batch of ten tenants' messages; ``decided``: with the options that the hook would choose."""
    messages = []
    for index in range(BATCH):
        tenant = f"tenant-{(number + index) % 10}"
        headers = {"tenant": tenant, "plan": "pro"}
        options = {"fairness_key": tenant, "weight": 3, "throttle_keys": [f"tenant:{tenant}"]} if decided else {}
        messages.append(Message(PAYLOAD, headers, **options))  # type: ignore[arg-type]
    return messages


async def rate(client: AsyncClient, queue: str, total: int, *, decided: bool) -> float:
    """Messages a second; the batches are made beforehand."""
    batches = [batch(number, decided=decided) for number in range(total // BATCH)]
    start = time.perf_counter()
    waiting: set[asyncio.Task[list[str]]] = set()
    for messages in batches:
        waiting.add(asyncio.ensure_future(client.enqueue_many(queue, messages)))
        if len(waiting) == IN_FLIGHT:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)
    return total / (time.perf_counter() - start)


async def measure(cluster: OneCluster, total: int, rounds: int, console: Console) -> dict[str, list[float]]:
    """The rates of all rounds, and the worker's CPU, by kind."""
    results: dict[str, list[float]] = {"without": [], "with": [], "cpu without": [], "cpu with": []}
    async with AsyncClient(cluster.endpoint, timeout=60) as client:
        for _ in track(range(rounds), "enqueueing", console=console, transient=True):
            for kind in ("without", "with"):
                await client.create_queue("measured", on_enqueue=HOOK if kind == "with" else None)
                before = cluster.cpu_seconds()["worker"]
                results[kind].append(await rate(client, "measured", total, decided=kind == "without"))
                results[f"cpu {kind}"].append((cluster.cpu_seconds()["worker"] - before) / total * 1e6)
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
    table = Table("enqueue in batches of 100", "median", "min … max", "worker µs a message")
    for kind in ("without", "with"):
        rates = results[kind]
        cpu = statistics.median(results[f"cpu {kind}"])
        span = f"{min(rates):,.0f} … {max(rates):,.0f}"
        table.add_row(f"{kind} a hook", f"{statistics.median(rates):,.0f}/s", span, f"{cpu:.1f}")
    console.print(table)
    share = statistics.median(each / other for each, other in zip(results["with"], results["without"], strict=True))
    console.print(f"the hook leaves {share:.0%} (median of the pairs; at least {SHARE_MIN:.0%})")
    raise SystemExit(0 if share >= SHARE_MIN else 1)


if __name__ == "__main__":
    main()

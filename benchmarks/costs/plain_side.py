"""Do the same with the rows in plain Python programs: clients in processes of their own, which start at the same moment."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

from pyarrow.parquet import ParquetFile

from benchmarks.harness.fila import blocking_client
from benchmarks.harness.processes import Gate, Spent, Work, together
from fila_cluster import Message

ROWS_AT_ONCE = 1000
RECEIVED_AT_ONCE = 500


def messages(path: Path, with_ids: bool) -> Iterator[Message]:
    """Yield the rows of a file, read piece by piece, with a dedup id each or without."""
    run, numbers = uuid4().hex[:16], count()
    for batch in ParquetFile(path).iter_batches(ROWS_AT_ONCE):
        payloads, keys = batch["payload"].to_pylist(), batch["fairness_key"].to_pylist()
        headers = batch["headers"].to_pylist(maps_as_pydicts="strict")
        for payload, pairs, key, number in zip(payloads, headers, keys, numbers, strict=False):
            yield Message(payload, pairs, fairness_key=key, dedup_id=f"{run}{number:016x}" if with_ids else None)


async def load(gate: Gate, address: str, path: Path, queue: str, with_ids: bool) -> Spent:
    """Enqueue the rows of a file."""
    with blocking_client(address) as client:
        client.cluster_status()
        gate.wait()
        client.enqueue_many(queue, messages(path, with_ids))
        return gate.spent()


async def drain(gate: Gate, address: str, path: Path, queue: str) -> Spent:
    """Receive, read and acknowledge messages until no more come."""
    with blocking_client(address) as client:
        client.cluster_status()
        gate.wait()
        while deliveries := client.receive(queue, RECEIVED_AT_ONCE):
            for delivery in deliveries:
                assert delivery.payload
                assert delivery.headers
            client.ack(deliveries)
        return gate.spent()


def timed(work: Work, endpoint: str, files: list[Path], *arguments: object) -> tuple[float, float]:
    """Return the seconds until all processes, one for each file, are done, and their CPU seconds."""
    done: list[Spent] = together(*[(work, endpoint, path, *arguments) for path in files])
    seconds = max(each.ended for each in done) - min(each.began for each in done)
    return seconds, sum(each.cpu_s for each in done)

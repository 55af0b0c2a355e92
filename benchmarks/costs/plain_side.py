"""Do the same with the rows in plain Python programs: clients in processes of their own, which start at the same moment."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from pyarrow.parquet import ParquetFile

from fila_cluster import Client, Message

Work: TypeAlias = Callable[..., object]
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


def load(client: Client, path: Path, queue: str, with_ids: bool) -> None:
    """Enqueue the rows of a file."""
    client.enqueue_many(queue, messages(path, with_ids))


def drain(client: Client, path: Path, queue: str) -> None:
    """Receive, read and acknowledge messages until no more come."""
    while deliveries := client.receive(queue, RECEIVED_AT_ONCE):
        for delivery in deliveries:
            assert delivery.payload
            assert delivery.headers
        client.ack(deliveries)


def _work(work: Work, endpoint: str, path: Path, arguments: tuple[Any, ...], pipe: Connection) -> None:
    with Client(endpoint, timeout=60) as client:
        client.cluster_status()
        pipe.send("ready")
        pipe.recv()
        before = time.process_time()
        work(client, path, *arguments)
        pipe.send(time.process_time() - before)


def timed(work: Work, endpoint: str, files: list[Path], *arguments: object) -> tuple[float, float]:
    """Return the seconds until all processes, one for each file, are done, and their CPU seconds."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for path in files:
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(work, endpoint, path, arguments, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    start = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    cpu_s = sum(pipe.recv() for pipe in pipes)
    return time.perf_counter() - start, cpu_s

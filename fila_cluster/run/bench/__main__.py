"""``python -P -m fila_cluster.run.bench producer|consumer``: one child of a run.

Standard input has three lines: the task, when to begin (nanoseconds of the monotonic clock), and at last ``stop``. If it ends
without that, the parent is dead: then the child removes the run's queue in its place. Standard output has messages of
MessagePack, each after its length in four bytes.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Final

import msgspec

from fila_cluster import AsyncClient
from fila_cluster.client.io.reactor import run
from fila_cluster.errors import FilaError
from fila_cluster.run.bench.clients import BenchConsumer, BenchProducer
from fila_cluster.run.bench.workload import ChildDone, ChildFailed, ChildProgress, Consumed, Line, Produced, Task

REQUEST_S_MAX: Final = 30.0
"""An overloaded broker answers late: that is a figure, not a failure."""
_STDOUT: Final = 1
_REPORT_S: Final = 0.1
"""Between two reports of progress."""


def write(line: Line) -> None:
    """Write one message to the parent, if it lives."""
    encoded = msgspec.msgpack.encode(line)
    left = memoryview(len(encoded).to_bytes(4, "big") + encoded)
    with suppress(BrokenPipeError):
        while left:
            left = left[os.write(_STDOUT, left) :]


async def main(role: str) -> None:
    """Do the task that standard input names."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    task = msgspec.json.decode(await lines.readline(), type=Task)
    worker: BenchProducer | BenchConsumer = BenchProducer(task) if role == "producer" else BenchConsumer(task)
    async with AsyncClient(task.endpoint, timeout=REQUEST_S_MAX) as client:
        await client.queue_stats(task.queue)  # connected before the clock starts
        write(ChildProgress(0))
        begin = await lines.readline()
        last = await _work(worker, client, int(begin), lines) if begin.strip().isdigit() else begin
        if not last:
            with suppress(FilaError):
                await client.delete_queue(task.queue, force=True)


async def _work(
    worker: BenchProducer | BenchConsumer, client: AsyncClient, start_ns: int, lines: asyncio.StreamReader
) -> bytes:
    """Run a worker, and report its progress and result. Return the last line of input, or an empty one."""
    stopping = asyncio.create_task(lines.readline())
    work: asyncio.Task[Produced | Consumed] = asyncio.create_task(worker.run(client, start_ns))
    while not work.done():
        await asyncio.wait({work} if stopping.done() else {work, stopping}, timeout=_REPORT_S, return_when="FIRST_COMPLETED")
        if stopping.done():
            worker.stop()
        write(ChildProgress(worker.count))
    write(ChildDone(await work))
    return await stopping


if __name__ == "__main__":
    try:
        run(main(sys.argv[1]))
    except* FilaError as errors:
        write(ChildFailed(str(errors.exceptions[0])))
        sys.exit(1)

"""An app that notes each message that it begins with, for the benchmark ``handlers``. ``COUNTING_NOTES``: the file of its
notes."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from typing import Annotated

from fila_cluster.app import App, Depends

COROUTINE, FUNCTION = "numbers-of-a-coroutine", "numbers-of-a-function"
WORK_S_MAX = 0.02

app = App()


def notes() -> Iterator[int]:
    """Open the notes; what processes append there at the same time is kept apart."""
    descriptor = os.open(os.environ["COUNTING_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


Notes = Annotated[int, Depends(notes, scope="app")]


@app.handler(COROUTINE, concurrency=8)
async def awaited(number: int, notes: Notes) -> None:
    """Note a number, and work on it for a while."""
    os.write(notes, b"c%d\n" % number)
    await asyncio.sleep(random.random() * WORK_S_MAX)


@app.handler(FUNCTION, concurrency=4, prefetch=16)
def called(number: int, notes: Notes) -> None:
    """Do the same in a thread."""
    os.write(notes, b"f%d\n" % number)
    time.sleep(random.random() * WORK_S_MAX)

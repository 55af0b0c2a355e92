"""Client processes: what is measured runs beside the harness, in processes that start their work at the same moment.

:func:`together` runs several functions, each in a process of its own: each prepares, says that it is ready, begins when all
are, and returns a value that can be pickled. Times are of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import multiprocessing
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeAlias

import psutil
import uvloop

CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_S = 1800.0
"""How long a client process may work before the benchmark fails."""


class Gate:
    """In a client process: where it waits until all are ready, and what it measured since."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._cpu_s = 0.0
        self._opened_at = 0.0

    def wait(self) -> None:
        """Say that all is prepared, and wait until the others are ready, too. The clock starts here."""
        self._pipe.send(("ready", None))
        self._pipe.recv()
        self._cpu_s, self._opened_at = time.process_time(), time.monotonic()

    def spent(self) -> "Spent":
        """Return what was spent since the gate opened."""
        return Spent(self._opened_at, time.monotonic(), time.process_time() - self._cpu_s)


class Spent:
    """Begin and end on the monotonic clock, and the process's CPU seconds between them."""

    def __init__(self, began: float, ended: float, cpu_s: float) -> None:
        self.began = began
        self.ended = ended
        self.cpu_s = cpu_s

    @property
    def seconds(self) -> float:
        """From begin to end."""
        return self.ended - self.began


Work: TypeAlias = Callable[..., Awaitable[Any]]
"""``async def work(gate, *arguments)``: prepares, calls ``gate.wait()`` once, works, and returns a value."""


class ClientProcess:
    """A client process that runs ``work(gate, *arguments)`` in an event loop of its own. ``precise``: see
    :func:`loop_factory`."""

    def __init__(self, work: Work, *arguments: Any, env: Mapping[str, str] = {}, precise: bool = False) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_child, args=(work, arguments, precise, theirs), daemon=True)
        with environment(env):
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert pid is not None, "it was started"
        return pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def await_ready(self) -> None:
        """Wait until it has prepared everything."""
        self._expect("ready")

    def go(self) -> None:
        """Let it begin."""
        self._pipe.send("go")

    def result(self) -> Any:
        """Wait for its end. Return its value."""
        value = self._expect("done")
        self._process.join()
        return value

    def end(self) -> None:
        """Kill it if it still runs: another one of its group failed."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _expect(self, kind: str) -> Any:
        if not self._pipe.poll(PATIENCE_S):
            raise SystemExit(f"a client process was not {kind} after {PATIENCE_S:.0f} s")
        try:
            said, value = self._pipe.recv()
        except EOFError:
            raise SystemExit(
                f"a client process ended before it was {kind}, with exit code {self._process.exitcode}"
            ) from None
        if said != kind:
            raise SystemExit(f"a client process failed:\n{value}")
        return value


def together(*works: tuple[Any, ...], env: Mapping[str, str] = {}, precise: Sequence[int] = ()) -> list[Any]:
    """Run each ``(work, *arguments)`` in a process of its own, all from one moment. Return their values.

    ``precise``: the indices of the works whose event loop has precise timers.
    """
    clients = [ClientProcess(*each, env=env, precise=number in precise) for number, each in enumerate(works)]
    try:
        for client in clients:
            client.await_ready()
        for client in clients:
            client.go()
        return [client.result() for client in clients]
    finally:
        for client in clients:
            client.end()


def loop_factory(precise: bool) -> asyncio.AbstractEventLoop:
    """Return an event loop. uvloop is faster, but its timers are as coarse as a millisecond; ``precise`` ones need
    ``select``."""
    if precise:
        from selectors import SelectSelector  # noqa: PLC0415 # few processes need it

        return asyncio.SelectorEventLoop(SelectSelector())
    return uvloop.new_event_loop()


def _child(work: Work, arguments: tuple[Any, ...], precise: bool, pipe: Pipe) -> None:
    try:
        with asyncio.Runner(loop_factory=lambda: loop_factory(precise)) as runner:
            value = runner.run(_awaited(work, Gate(pipe), arguments))
    except BaseException:  # the harness shows it and ends
        pipe.send(("failed", traceback.format_exc()))
    else:
        pipe.send(("done", value))


async def _awaited(work: Work, gate: Gate, arguments: tuple[Any, ...]) -> Any:
    return await work(gate, *arguments)


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment of this process, and of those that it starts meanwhile."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def own_cores() -> list[int]:
    """Return the cores that this process may use."""
    process = psutil.Process()
    return list(process.cpu_affinity() if hasattr(process, "cpu_affinity") else range(psutil.cpu_count() or 1))


def one_core(pinned: bool) -> AbstractContextManager[None]:
    """Pin this process and all that it starts meanwhile to its first core, if ``pinned``."""
    return on_cores(own_cores()[:1]) if pinned else nullcontext()


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pin this process and all that it starts meanwhile to some cores, where the system can pin."""
    process, before = psutil.Process(), own_cores()
    with suppress(AttributeError):
        process.cpu_affinity(list(cores))
    try:
        yield
    finally:
        with suppress(AttributeError):
            process.cpu_affinity(before)

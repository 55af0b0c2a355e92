"""Threads for functions: as many as functions at once, no more."""

import asyncio
import contextvars
import threading
from functools import partial

import pytest

from fila_cluster.app.calling import Threads

here: contextvars.ContextVar[str] = contextvars.ContextVar("here")


def test_a_thread_is_used_again() -> None:
    async def test() -> set[int]:
        threads = Threads()
        seen = {await threads.start(threading.get_ident) for _ in range(50)}
        threads.close()
        return seen

    assert len(asyncio.run(test())) == 1


def test_functions_at_once_have_threads_of_their_own_and_the_callers_context() -> None:
    barrier = threading.Barrier(4)

    def together() -> tuple[int, str]:
        barrier.wait(60)
        return threading.get_ident(), here.get()

    async def test() -> list[tuple[int, str]]:
        here.set("in a test")
        threads = Threads()
        found = await asyncio.gather(*(threads.start(together) for _ in range(4)))
        threads.close()
        return found

    found = asyncio.run(test())
    assert len({thread for thread, _ in found}) == 4
    assert {context for _, context in found} == {"in a test"}


def test_errors_are_the_callers() -> None:
    def raises(error: BaseException) -> None:
        raise error

    async def test() -> list[object]:
        threads = Threads()
        errors = (ZeroDivisionError(), StopIteration(), GeneratorExit(), KeyboardInterrupt())
        found = await asyncio.gather(*(threads.start(partial(raises, error)) for error in errors), return_exceptions=True)
        threads.close()
        return list(found)

    division, *others = asyncio.run(test())
    assert isinstance(division, ZeroDivisionError)
    assert [type(each) for each in others] == [RuntimeError, RuntimeError, RuntimeError]


def test_a_result_that_nobody_waits_for_is_dropped() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def hangs() -> None:
        may_end.wait(60)
        ended.set()

    async def test() -> None:
        threads = Threads()
        threads.start(hangs).cancel()
        threads.close()

    asyncio.run(test())
    may_end.set()
    assert ended.wait(60)


def test_a_function_whose_thread_could_not_be_started_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        threads = Threads()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="start new thread"):
                threads.start(lambda: ran.append("refused"))
        await threads.start(lambda: ran.append("started"))
        threads.close()

    asyncio.run(test())
    assert ran == ["started"]

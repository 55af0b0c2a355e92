"""A Lua state that runs one queue's scripts: the outside of the sandbox.

The memory limit is the allocator's, and is in force only while a script runs in a protected call. Everywhere else, and in
every callback from Lua, it is lifted: an allocation that fails there would abort the process, or jump over Python's frames.
So each callback lifts it first, and the driver restores it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final, TypeAlias

import lupa.lua54 as lupa

from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.hooks import NO_TIME_MAX_NS

SLACK_BYTES: Final = 64 * 1024
"""Memory for the sandbox itself: generated loops, studied patterns, config values."""

UNWATCHED_BYTES: Final = 64 * 1024
"""The memory limit without the count hook: the cost of one operation grows with the memory it may use."""

HEADER_BYTES: Final = 160
"""The memory of a header in Lua beside its text: a place in its message's table, and one in that of the message before."""

STACKED_MAX: Final = 2000
"""Arguments that are passed on the stack, which never shrinks again."""

ReadConfig: TypeAlias = Callable[[str], str | None]

_PARTS: Final = ("limits", "patterns", "sandbox", "runs")


class LuaStateError(Exception):
    """A state is broken; only a new one helps. Never seen: runs end in a protected call of their own."""


class LuaState:
    """The scripts of one queue, and what they keep between runs.

    ``tracked``: notice when a script writes a global; see :attr:`wrote`. ``counting``: count instructions, slowly. ``clocks``
    return real time and this thread's CPU time, in seconds.
    """

    def __init__(
        self,
        queue: str,
        *,
        timeout_ms: int,
        memory_limit_bytes: int,
        get_config: ReadConfig,
        tracked: bool = False,
        counting: bool = False,
        clocks: tuple[Callable[[], float], Callable[[], float]] = (perf_counter, thread_time),
    ) -> None:
        self._get_config = get_config
        self._raised: BaseException | None = None
        self._runtime: Any = lupa.LuaRuntime(
            attribute_filter=_refuse, register_eval=False, register_builtins=False, max_memory=0
        )
        self._engine: Any = self._runtime.table_from(
            {
                "queue": queue,
                "timeout_ms": timeout_ms,
                "timeout_text": f"ran for more than {timeout_ms} ms",
                "memory_text": f"used more than {memory_limit_bytes:,} bytes of memory",
                "tracked": tracked,
                "counting": counting,
                "clock": clocks[0],
                "cpu_clock": clocks[1],
                "lift": self._lift,
                "restore": self._restore,
                "ask": self._ask,
            }
        )
        for part in _compiled_parts():
            self._runtime.execute(part, self._engine)
        self._runtime.execute("debug, python = nil, nil")
        self._engine["weigh"]()
        self._floor_bytes: int = self._runtime.get_memory_used(total=True)
        self._ceiling_bytes = self._floor_bytes + memory_limit_bytes + SLACK_BYTES
        self._low_ceiling_bytes = self._floor_bytes + min(memory_limit_bytes, UNWATCHED_BYTES) + SLACK_BYTES
        self._before_bytes = self._limit_bytes = self._room_bytes = self._messages_bytes = 0
        self._drive: Any = self._engine["drive"]

    def load(self, name: str, script: str) -> None:
        """Run a script's top level; ``name`` is its name in errors. Raise LuaCompilationError if it fails."""
        self._expect(0, watched=True)
        failure = self._engine["start"](name, script)
        if self._raised:
            raise self._raised
        if failure:
            raise LuaCompilationError(failure if failure.startswith(name) else f"{name}: {failure}")

    def defines(self, hook: str) -> bool:
        """Return whether a function of that name is defined at present."""
        return self._engine["defined"](hook) is not None

    def start(self, scripts: Mapping[str, str]) -> None:
        """Load scripts, by the hook that each must define. Raise LuaCompilationError if one does not."""
        for hook, script in scripts.items():
            self.load(hook, script)
            if not self.defines(hook):
                raise LuaCompilationError(
                    f"{hook}: the script defines no function of that name: write function {hook}(msg) … end"
                )
        for hook in scripts:
            self._engine[hook] = self._engine["defined"](hook)
        self._engine["run"]["wrote"] = False

    def variables(self) -> set[str]:
        """Return the names of the files' variables that hooks use."""
        return set((self._engine["variables"]() or "").split())

    def enqueue_loop(self, wide: bool, names: Sequence[str] | None) -> Any:
        """Return a loop over messages that all have these headers in this order; None: any headers."""
        return self._engine["make_enqueue_loop"](wide, None if names is None else self._runtime.table_from(names))

    def failure_loop(self) -> Any:
        """Return a loop over failed attempts."""
        return self._engine["make_failure_loop"]()

    def run(
        self,
        loop: Any,
        width: int,
        count: int,
        failures_max: int,
        arguments: Sequence[Any],
        headers_max: int,
        watched: bool = True,
        time_max_ns: int = NO_TIME_MAX_NS,
    ) -> tuple[Any, ...]:
        """Run a loop. Return rows of ``width``, extras of five, and the number of values in the extras.

        It stops after the message during which ``time_max_ns`` ends. ``headers_max``: the number of headers of the message
        with the most. ``watched`` false: without the count hook, and with little memory; see :attr:`exposed`.
        """
        self._expect(headers_max, watched)
        time_max = time_max_ns / 1e9
        try:
            if len(arguments) > STACKED_MAX:
                values = self._drive(watched, loop, width, count, failures_max, time_max, self._runtime.table_from(arguments))
            else:
                values = self._drive(watched, loop, width, count, failures_max, time_max, None, *arguments)
        except UnicodeDecodeError:
            values = self._engine["sanitized"]()
        except lupa.LuaError as error:
            raise LuaStateError(str(error)) from error
        finally:
            self._lift()
        if self._raised:
            raise self._raised
        return values if type(values) is tuple else (values,)

    @property
    def exposed(self) -> bool:
        """Whether the last run ended with a message that ran out of memory, or took too long to run unwatched."""
        return bool(self._engine["run"]["exposed"])

    @property
    def wrote(self) -> bool:
        """Whether a script has written a global since all were loaded, as far as that is tracked."""
        return bool(self._engine["run"]["wrote"])

    def is_worn(self) -> bool:
        """Return whether what scripts keep takes more than half of their memory, without garbage."""
        half = (self._floor_bytes + self._ceiling_bytes) // 2
        if self._used_bytes() > half:
            self._runtime.gccollect()
        return bool(self._used_bytes() > half)

    def close(self) -> None:
        """Free the state."""
        self._runtime = self._engine = self._drive = None

    @property
    def instructions(self) -> int:
        """Instructions run so far, if they are counted."""
        return int(self._engine["run"]["instructions"])

    def _used_bytes(self) -> int:
        return int(self._runtime.get_memory_used(total=True))

    def _expect(self, headers: int, watched: bool) -> None:
        """Prepare for arguments: their memory does not count as the script's."""
        self._room_bytes = self._ceiling_bytes if watched else self._low_ceiling_bytes
        if self._used_bytes() > self._room_bytes:
            self._runtime.gccollect()  # garbage of large messages
        self._before_bytes, self._limit_bytes = self._used_bytes(), 0
        self._messages_bytes = headers * HEADER_BYTES

    # --- callbacks from Lua; they may not raise ---------------------------------------------------------------------------

    def _lift(self) -> None:
        self._runtime.set_max_memory(0)

    def _restore(self) -> float:
        """Put the limit in force; return what the messages take, in KiB."""
        if not self._limit_bytes:
            self._messages_bytes += max(0, self._used_bytes() - self._before_bytes)
            self._limit_bytes = self._room_bytes + self._messages_bytes
        self._runtime.set_max_memory(self._limit_bytes, total=True)
        return self._messages_bytes / 1024

    def _ask(self, key: str) -> str | None:
        self._runtime.set_max_memory(0)
        try:
            return self._get_config(key)
        except BaseException as error:  # raised here, a script could catch it and get hold of a Python object
            self._raised = error
            return None


def _refuse(_target: Any, name: Any, _setting: bool) -> Any:
    raise AttributeError(f"{name!r}: Python is out of reach")


@cache
def _compiled_parts() -> list[bytes]:
    """Return the sandbox's own Lua as bytecode, made once: compiling it takes as long as the rest of a new state."""
    compiler = lupa.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
    compiled = compiler.eval(b"function(text, name) return string.dump(assert(load(text, name)), true) end")
    folder = Path(__file__).parent
    return [compiled((folder / f"{name}.lua").read_bytes(), b"=" + name.encode()) for name in _PARTS]

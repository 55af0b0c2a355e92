"""The core's port to hooks, over a Lua state: batches in, checked decisions out."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

from fila_proto_zmq.errors import LuaCompilationError
from fila_worker.core.hooks import NO_CHANGE, NO_TIME_MAX_NS, RETRY, FailedAttempt, FailureDecision, HookFailed
from fila_worker.core.measures import RUN_NS, CountedHistogram
from fila_worker.lua.decisions import Decisions, delay_ms, judge
from fila_worker.lua.headers import NAMES_MAX, Shape, array_of, batch_of, common_names, decode, flat_items, shape_of
from fila_worker.lua.recall import Outcome, Recall
from fila_worker.lua.state import LuaState, LuaStateError, ReadConfig
from fila_worker.lua.straight import (
    UNWATCHED_HEADERS_BYTES,
    UNWATCHED_TIMEOUT_MS_MIN,
    assigned_names,
    is_pure_text,
    is_straight,
)

SHAPES_MAX: Final = 8
"""Sets of header names for which loops are made; other sets use the slower loop."""

_NARROW: Final = 3
_WIDE: Final = 6
_EXTRA: Final = 5


class LuaHooks:
    """The compiled scripts of one queue; the port defines its methods.

    ``make_state(get_config)`` makes the Lua state that the scripts run in, and a second one if they fill the memory of the
    first. ``straight``: the scripts may run unwatched. ``recall``: decisions that need no second run.
    """

    def __init__(
        self, scripts: Mapping[str, str], make_state: Callable[[ReadConfig], LuaState], *, straight: bool, recall: Recall
    ) -> None:
        self.has_on_enqueue = "on_enqueue" in scripts
        self.has_on_failure = "on_failure" in scripts
        self.failed = 0
        self.took_ns = 0
        self.run_ns = CountedHistogram(RUN_NS)
        self._scripts = scripts
        self._make_state = make_state
        self._watched = not straight
        self._recall = recall
        self._decisions = Decisions()
        self._width = _NARROW
        self._shape: Shape | None = None
        self._shapes: set[frozenset[str]] = set()
        self._start()

    def on_enqueue(
        self, headers: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[Outcome]:
        """Return a decision for each message: a recalled one, or one that the script makes."""
        started_ns = perf_counter_ns()
        if self._recall.active:
            outcomes = self._recall.decide(headers, payload_sizes, partial(self._run, failures_max, time_max_ns))
            if HookFailed in map(type, outcomes):
                outcomes = _cut(outcomes, failures_max)
        else:
            outcomes = self._run(failures_max, time_max_ns, headers, payload_sizes)
        self.took_ns = perf_counter_ns() - started_ns
        return outcomes

    def on_failure(
        self, failures: Sequence[FailedAttempt], failures_max: int, time_max_ns: int = NO_TIME_MAX_NS
    ) -> list[FailureDecision | HookFailed]:
        """Run the script for each failed attempt; return the decisions."""
        started_ns = perf_counter_ns()
        self.took_ns = 0
        outcomes: list[FailureDecision | HookFailed] = []
        packed = [failure.headers for failure in failures]
        while len(outcomes) < len(failures) and (left := failures_max - _streak(outcomes)) > 0:
            done = len(outcomes)
            if outcomes and self.took_ns >= time_max_ns:
                break
            headers = decode(batch_of(packed, done))
            left_ns = time_max_ns - self.took_ns
            outcomes += (
                self._decide_failures(failures[done : done + len(headers)], headers, left, left_ns) if headers else (RETRY,)
            )
            self.took_ns = perf_counter_ns() - started_ns
        self._distrust()
        self._note_time(self.took_ns, len(outcomes))
        return outcomes

    @property
    def instructions(self) -> int:
        """Lua instructions run so far, the driver's included, if they are counted."""
        return self._state.instructions

    def close(self) -> None:
        """Free the scripts' memory."""
        self._state.close()
        self._loops.clear()
        self._decisions.clear()

    def _start(self) -> None:
        """Make a fresh state and run the scripts' top levels in it."""
        state = self._make_state(self._recall.read)
        state.start(self._scripts)
        if self._recall.active and not state.variables().isdisjoint(
            set().union(*map(assigned_names, self._scripts.values()))
        ):
            self._recall.give_up()
        self._state = state
        self._loops: dict[tuple[Shape | None, int], Any] = {}
        self._failure_loop = state.failure_loop() if self.has_on_failure else None

    def _run(
        self, failures_max: int, time_max_ns: int, headers: Sequence[bytes], payload_sizes: Sequence[int]
    ) -> list[Outcome]:
        """Run the script for each message, until the time is up; return the outcomes."""
        started_ns = perf_counter_ns()
        took_ns = 0
        outcomes: list[Outcome] = []
        while len(outcomes) < len(headers) and (left := failures_max - _streak(outcomes)) > 0:
            if outcomes and took_ns >= time_max_ns:
                break
            done = len(outcomes)
            outcomes += self._decide(batch_of(headers, done), payload_sizes[done:], left, time_max_ns - took_ns)
            took_ns = perf_counter_ns() - started_ns
        self._distrust()
        self._note_time(took_ns, len(outcomes))
        return outcomes

    def _note_time(self, took_ns: int, runs: int) -> None:
        """Record how long some runs took together."""
        if runs:
            self.run_ns.observe_often(took_ns // runs, runs)

    def _distrust(self) -> None:
        """Give up recalling when a script has written something that outlives its run."""
        if self._recall.active and self._state.wrote:
            self._recall.give_up()

    def _decide(
        self, packed: Sequence[bytes], payload_sizes: Sequence[int], failures_max: int, time_max_ns: int
    ) -> list[Outcome]:
        """Return decisions for one batch, or for the first part of it."""
        shape, count, headers_max = self._shape, len(packed), NAMES_MAX
        arguments: list[Any] | None = shape.columns(array_of(packed)) if shape else None
        if arguments is None:
            batch = decode(packed)
            if not batch:
                return [NO_CHANGE]
            shape = self._shape = self._shape_for(batch)
            count, headers_max = len(batch), max(map(len, batch))
            arguments = shape.columns_of(batch) if shape else flat_items(batch)
        watched = self._watched or sum(map(len, packed)) > UNWATCHED_HEADERS_BYTES
        loop, width = self._loop(shape), self._width
        arguments = [*payload_sizes[:count], *arguments]
        try:
            values = self._state.run(loop, width, count, failures_max, arguments, headers_max, watched, time_max_ns)
        except LuaStateError as error:
            return [self._replaced(error)]
        if values[-1]:
            return self._with_extras(values, width, watched)
        columns = iter(values)
        rows = zip(columns, columns, columns, strict=False) if width == _NARROW else zip(*[columns] * width, strict=False)
        return list(map(self._decisions.__getitem__, rows))

    def _shape_for(self, batch: Sequence[dict[str, str]]) -> Shape | None:
        """Return the shape of a batch; None if it has none, or the queue has had too many."""
        names = common_names(batch)
        if names is None or (names not in self._shapes and len(self._shapes) >= SHAPES_MAX):
            return None
        self._shapes.add(names)
        return shape_of(names)

    def _loop(self, shape: Shape | None) -> Any:
        loop = self._loops.get((shape, self._width))
        if loop is None:
            loop = self._state.enqueue_loop(self._width == _WIDE, None if shape is None else shape.names)
            self._loops[shape, self._width] = loop
        return loop

    def _with_extras(self, values: tuple[Any, ...], width: int, watched: bool) -> list[Outcome]:
        """Return decisions of which some need more than their row, and failures."""
        rows, extras = _split(values, width)
        outcomes: list[Outcome] = [self._decisions[row] for row in rows]
        for at, priority, cost, delay, failure in extras:
            if failure:
                outcomes[at - 1] = _failed("on_enqueue", failure)
            else:
                fairness_key, weight, throttle_keys = rows[at - 1]
                outcomes[at - 1] = judge(fairness_key, weight, throttle_keys, priority, cost, delay)
                self._width = _WIDE  # it will probably do so again
        if self._state.exposed and (len(outcomes) > 1 or not watched):
            outcomes.pop()  # it runs again, with all the time and memory that the limits allow
            self._watched = True
        self._note_failures(outcomes)
        return outcomes

    def _decide_failures(
        self, failures: Sequence[FailedAttempt], headers: list[dict[str, str]], failures_max: int, time_max_ns: int
    ) -> list[FailureDecision | HookFailed]:
        columns = zip(*((each.id, each.attempts, each.error, each.fairness_key) for each in failures), strict=True)
        arguments = [value for column in columns for value in column] + flat_items(headers)
        headers_max = max(map(len, headers))
        try:
            values = self._state.run(
                self._failure_loop, 2, len(failures), failures_max, arguments, headers_max, time_max_ns=time_max_ns
            )
        except LuaStateError as error:
            return [self._replaced(error)]
        rows, extras = _split(values, 2)
        outcomes: list[FailureDecision | HookFailed] = [
            FailureDecision(row[0] is True, delay_ms(row[1]) or 0) for row in rows
        ]
        for at, _, _, _, failure in extras:
            outcomes[at - 1] = _failed("on_failure", failure)
        if extras:
            self._note_failures(outcomes)
        return outcomes

    def _note_failures(self, outcomes: Sequence[object]) -> None:
        """Count the failures; start the scripts again if they have filled their memory for good."""
        failed = sum(type(outcome) is HookFailed for outcome in outcomes)
        self.failed += failed
        if failed and self._state.is_worn():
            self._renew()

    def _renew(self) -> None:
        """Start the scripts again; if they do not start, keep the state."""
        worn = self._state
        try:
            self._start()
        except LuaCompilationError:
            return
        worn.close()

    def _replaced(self, error: LuaStateError) -> HookFailed:
        """Replace a broken state; return the failure of its message."""
        self.failed += 1
        self._renew()
        return HookFailed(f"the Lua state broke, and was replaced: {error}")


def compile_hooks(
    queue: str,
    on_enqueue: str | None,
    on_failure: str | None,
    *,
    timeout_ms: int,
    memory_limit_bytes: int,
    get_config: ReadConfig,
    recalls: bool = True,
    **others: Any,
) -> LuaHooks:
    """Compile a queue's scripts; a :class:`~fila_worker.core.hooks.HookCompiler`.

    ``recalls`` false: run a script for every message, without recalled decisions. ``others`` go to :class:`LuaState`.
    """
    given = {"on_enqueue": on_enqueue, "on_failure": on_failure}
    scripts = {hook: script for hook, script in given.items() if script is not None}
    straight = timeout_ms >= UNWATCHED_TIMEOUT_MS_MIN and all(map(is_straight, scripts.values()))
    pure = straight and all(map(is_pure_text, scripts.values()))
    recall = Recall(get_config, active=pure and recalls, by_size=any("payload_size" in script for script in scripts.values()))

    def make_state(read_config: ReadConfig) -> LuaState:
        return LuaState(
            queue,
            timeout_ms=timeout_ms,
            memory_limit_bytes=memory_limit_bytes,
            get_config=read_config,
            tracked=recall.active,
            **others,
        )

    return LuaHooks(scripts, make_state, straight=straight, recall=recall)


def _split(values: tuple[Any, ...], width: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the rows and the extras of what a loop returned."""
    end = len(values) - 1 - values[-1]
    return _rows(values[:end], width), _rows(values[end:-1], _EXTRA)


def _rows(values: tuple[Any, ...], width: int) -> list[tuple[Any, ...]]:
    columns = iter(values)
    return list(zip(*[columns] * width, strict=True))


def _failed(hook: str, failure: str) -> HookFailed:
    return HookFailed(failure if failure.startswith("on_") else f"{hook}: {failure}")


def _streak(outcomes: Sequence[object]) -> int:
    """Return the number of failures in a row at the end."""
    streak = 0
    for outcome in reversed(outcomes):
        if type(outcome) is not HookFailed:
            break
        streak += 1
    return streak


def _cut(outcomes: list[Outcome], failures_max: int) -> list[Outcome]:
    """Return the outcomes up to the ``failures_max``-th failure in a row."""
    streak = 0
    for index, outcome in enumerate(outcomes):
        streak = streak + 1 if type(outcome) is HookFailed else 0
        if streak == failures_max:
            return outcomes[: index + 1]
    return outcomes

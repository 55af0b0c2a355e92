"""How a queue's hooks fare: what ran, what failed, and whether the breaker is open."""

import time

from nicegui import ui

from fila_cluster.dashboard.widgets.charts import Tile
from fila_cluster.figures import counted
from fila_proto_zmq.commands import HookState


class HookStateCard:
    """Numbers since the scripts were compiled, and the last failure."""

    def __init__(self) -> None:
        with ui.row().classes("w-full gap-3 items-stretch") as self._tiles:
            self._runs = Tile("Runs", "hook-runs")
            self._failed = Tile("Failed", "hook-failed")
            self._bypassed = Tile("Bypassed", "hook-bypassed")
            self._breaker = Tile("Breaker", "hook-breaker")
        self._failure = ui.label().classes("text-negative fila-mono").props("data-testid=last-failure")

    def show(self, hooks: HookState | None) -> None:
        """Change what is said; None: the queue has no hooks."""
        self._tiles.set_visibility(hooks is not None)
        self._failure.set_visibility(hooks is not None and bool(hooks.last_failure))
        if hooks is None:
            return
        self._runs.show(counted(hooks.runs), "what is recalled does not run")
        self._failed.show(counted(hooks.failed), alarming=hooks.failures_in_row > 0)
        self._bypassed.show(counted(hooks.bypassed))
        left_ms = hooks.open_until_ms - time.time_ns() // 1_000_000
        if left_ms > 0:
            self._breaker.show("open", f"tried again in {left_ms / 1000:.0f} s", alarming=True)
        else:
            self._breaker.show("closed", f"opens after {hooks.threshold} failures in a row, now {hooks.failures_in_row}")
        self._failure.text = f"The last failure: {hooks.last_failure}"

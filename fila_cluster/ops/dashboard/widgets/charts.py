"""Charts and large numbers: series over half an hour, shares, token buckets as gauges, tiles."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from fila_cluster.client.views import ThrottleStats
from fila_cluster.figures import counted
from fila_cluster.ops.analysis.history import LastMinuteShare
from fila_cluster.ops.dashboard.shell.frame import SERIES_COLOURS
from fila_cluster.ops.dashboard.shell.live import register

_SHARE_INK: Final = "#8a94a3"
_ENTITLED, _ACTUAL = "rgba(128,128,128,.45)", SERIES_COLOURS[0]


class ShareChart:
    """Two bars for each key of the last minute, in per cent of the queue's deliveries."""

    def __init__(self) -> None:
        self._shown: Sequence[LastMinuteShare] = ()
        with ui.card().classes("p-3 gap-0 grow min-w-[22rem] basis-0"):
            ui.label("Share of deliveries, last minute").classes("font-semibold")
            self._chart = ui.echart(_share_options()).classes("w-full h-56").props("data-testid=shares")
            self._limits = ui.label().classes("fila-quiet whitespace-pre-line break-words").props("data-testid=limits")

    def show(self, shares: Sequence[LastMinuteShare], limits: Mapping[str, str]) -> None:
        """Draw; the keys with the most deliveries first. ``limits``: other reasons for less than a weight's share, by key."""
        self._limits.text = "\n".join(
            f"{_shortened(key)} is limited by something else than its weight: {why}" for key, why in limits.items()
        )
        if shares == self._shown:
            return
        self._shown = shares
        options = self._chart.options
        options["yAxis"]["data"] = [_shortened(share.fairness_key) for share in shares]
        options["series"][0]["data"] = [round(100 * share.entitled, 1) for share in shares]
        options["series"][1]["data"] = [round(100 * share.actual, 1) for share in shares]
        self._chart.update()


def _shortened(key: str) -> str:
    return key if len(key) <= 24 else f"{key[:23]}…"


def _share_options() -> dict[str, Any]:
    bar = {"type": "bar", "data": [], "barGap": "0%"}
    return {
        "animation": False,
        "textStyle": {"color": _SHARE_INK},
        "grid": {"left": 8, "right": 24, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {"top": 2, "left": 0, "itemHeight": 8, "itemWidth": 14, "textStyle": {"color": _SHARE_INK}},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {
            "type": "value",
            "axisLabel": {"color": _SHARE_INK, "formatter": "{value} %"},
            "splitLine": {"lineStyle": {"color": "rgba(128,128,128,.18)"}},
        },
        "yAxis": {"type": "category", "inverse": True, "data": [], "axisLabel": {"color": _SHARE_INK}},
        "series": [bar | {"name": "entitled by weight", "color": _ENTITLED}, bar | {"name": "actual", "color": _ACTUAL}],
    }


_INK: Final = "#8a94a3"
"""Readable on light and on dark ground."""


class TimeChart:
    """Lines, or areas on top of each other, over time. ``series``: the name of each among the numbers, and its label."""

    def __init__(self, title: str, series: Mapping[str, str], *, stacked: bool = False) -> None:
        self._names = list(series)
        self._drawn_until = 0.0
        with ui.card().classes("p-3 gap-0 grow min-w-[22rem] basis-0"):
            ui.label(title).classes("font-semibold")
            options = _time_options(
                [_line(label, colour, stacked) for label, colour in zip(series.values(), SERIES_COLOURS, strict=False)]
            )
            self._chart = ui.echart(options).classes("w-full h-56")

    def show(self, times: Sequence[float], numbers: Mapping[str, Sequence[float]]) -> None:
        """Draw; ``times`` in Unix seconds, NaN is a gap. Does nothing while there is no newer time."""
        if not times or times[-1] == self._drawn_until or not numbers:
            return
        self._drawn_until = times[-1]
        for name, line in zip(self._names, self._chart.options["series"], strict=True):
            line["data"] = [
                [1000 * at, None if math.isnan(it) else round(it, 2)] for at, it in zip(times, numbers[name], strict=True)
            ]
        self._chart.update()


def _line(label: str, colour: str, stacked: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "name": label,
        "type": "line",
        "data": [],
        "showSymbol": False,
        "lineStyle": {"width": 1.6},
        "color": colour,
    }
    return line | ({"stack": "all", "lineStyle": {"width": 0}, "areaStyle": {"opacity": 0.6}} if stacked else {})


def _time_options(series: list[dict[str, Any]]) -> dict[str, Any]:
    faint = {"lineStyle": {"color": "rgba(128,128,128,.18)"}}
    return {
        "animation": False,
        "textStyle": {"color": _INK},
        "grid": {"left": 8, "right": 12, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {"type": "scroll", "top": 2, "left": 0, "itemHeight": 8, "itemWidth": 14, "textStyle": {"color": _INK}},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "axisLabel": {"color": _INK, "hideOverlap": True}, "splitLine": {"show": False}},
        "yAxis": {"type": "value", "min": 0, "axisLabel": {"color": _INK}, "splitLine": faint, "minInterval": 0},
        "series": series,
    }


class Gauges:
    """One bar for each throttle key of a queue's messages, with what is free of its tokens or places; hidden without any."""

    def __init__(self) -> None:
        self._bars: dict[str, tuple[ui.label, ui.linear_progress]] = {}
        self._card = ui.card().classes("w-full p-3 gap-2").props("data-testid=throttles")
        with self._card:
            ui.label("Throttles").classes("font-semibold")
            self._rows = ui.column().classes("w-full gap-2")
        self._card.set_visibility(False)

    def show(self, throttles: Sequence[ThrottleStats]) -> None:
        """Change the gauges: keys without a rate have none."""
        throttles = [each for each in throttles if each.rate is not None]
        self._card.set_visibility(bool(throttles))
        if [each.key for each in throttles] != list(self._bars):
            self._build(throttles)
        for each in throttles:
            text, bar = self._bars[each.key]
            told = []
            free = 1.0
            if each.tokens is not None and each.burst is not None and each.rate is not None:
                tokens = max(0.0, each.tokens)
                told.append(f"{tokens:,.0f} of {each.burst:,.0f} tokens, {counted(round(each.rate))} a second")
                free = min(1.0, tokens / each.burst) if tokens >= 1 and each.burst else 0.0
            if each.concurrency is not None:
                waiting = f", {counted(each.waiting)} waiting" if each.waiting else ""
                told.append(f"{counted(each.in_use)} of {counted(each.concurrency)} places in use{waiting}")
                free = min(free, max(0.0, 1 - each.in_use / each.concurrency) if each.concurrency else 0.0)
            text.text = "; ".join(told)
            bar.value = free
            bar.props(f"color={'primary' if free else 'negative'}")

    def _build(self, throttles: Sequence[ThrottleStats]) -> None:
        self._rows.clear()
        self._bars = {}
        with self._rows:
            for each in throttles:
                with ui.column().classes("w-full gap-0"):
                    with ui.row().classes("w-full justify-between"):
                        ui.label(each.key).classes("fila-mono")
                        text = ui.label().classes("fila-quiet")
                    bar = ui.linear_progress(0.0, show_value=False).props("rounded instant-feedback aria-label=free")
                self._bars[each.key] = (text, bar)


class Tile:
    """A number in a card. ``mark`` is its ``data-testid`` in the page."""

    def __init__(self, name: str, mark: str) -> None:
        with ui.card().classes("px-4 py-3 gap-0 min-w-[7.6rem] basis-0 grow"):
            ui.label(name).classes("fila-quiet")
            self._number = ui.label("…").classes("fila-number").props(f"data-testid={mark}")
            self._note = ui.label("").classes("fila-quiet")
        register(self)

    def unknown(self, reason: str) -> None:
        """Show that the number is unknown."""
        self.show("?", "unknown")

    def known(self) -> None:
        """Do nothing: :meth:`show` comes with each answer."""

    def show(self, number: str, note: str = "", *, alarming: bool = False) -> None:
        """Show a new number."""
        self._number.text = number
        self._note.text = note
        self._number.classes(add="text-negative" if alarming else "", remove="" if alarming else "text-negative")

"""Series over the last half hour."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from fila_cluster.dashboard.theme import SERIES_COLOURS

_INK: Final = "#8a94a3"
"""Readable on both grounds."""


class TimeChart:
    """Lines, or areas on top of each other, along the time. ``series``: the name of each in what is shown, and its label."""

    def __init__(self, title: str, series: Mapping[str, str], *, stacked: bool = False) -> None:
        self._names = list(series)
        self._drawn_until = 0.0
        with ui.card().classes("p-3 gap-0 grow min-w-[22rem] basis-0"):
            ui.label(title).classes("font-semibold")
            options = _options(
                [_line(label, colour, stacked) for label, colour in zip(series.values(), SERIES_COLOURS, strict=False)]
            )
            self._chart = ui.echart(options).classes("w-full h-56")

    def show(self, times: Sequence[float], numbers: Mapping[str, Sequence[float]]) -> None:
        """Draw; ``times`` in Unix seconds, NaN is a gap. Nothing happens while there is no newer time."""
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
        "name": label, "type": "line", "data": [], "showSymbol": False, "lineStyle": {"width": 1.6}, "color": colour,
    }  # fmt: skip
    return line | ({"stack": "all", "lineStyle": {"width": 0}, "areaStyle": {"opacity": 0.6}} if stacked else {})


def _options(series: list[dict[str, Any]]) -> dict[str, Any]:
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

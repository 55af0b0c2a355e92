"""What fairness keys were entitled to, and what they got, side by side."""

from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from fila_cluster.dashboard.theme import SERIES_COLOURS
from fila_cluster.observing.history import Share

_INK: Final = "#8a94a3"
_ENTITLED, _ACTUAL = "rgba(128,128,128,.45)", SERIES_COLOURS[0]


class ShareChart:
    """Two bars for each key of the last minute, in per cent of the queue's deliveries."""

    def __init__(self) -> None:
        self._shown: Sequence[Share] = ()
        with ui.card().classes("p-3 gap-0 grow min-w-[22rem] basis-0"):
            ui.label("Share of deliveries, last minute").classes("font-semibold")
            self._chart = ui.echart(_options()).classes("w-full h-56").props("data-testid=shares")

    def show(self, shares: Sequence[Share]) -> None:
        """Draw; the most served first."""
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


def _options() -> dict[str, Any]:
    bar = {"type": "bar", "data": [], "barGap": "0%"}
    return {
        "animation": False,
        "textStyle": {"color": _INK},
        "grid": {"left": 8, "right": 24, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {"top": 2, "left": 0, "itemHeight": 8, "itemWidth": 14, "textStyle": {"color": _INK}},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {
            "type": "value", "axisLabel": {"color": _INK, "formatter": "{value} %"},
            "splitLine": {"lineStyle": {"color": "rgba(128,128,128,.18)"}},
        },
        "yAxis": {"type": "category", "inverse": True, "data": [], "axisLabel": {"color": _INK}},
        "series": [bar | {"name": "entitled", "color": _ENTITLED}, bar | {"name": "actual", "color": _ACTUAL}],
    }  # fmt: skip

"""Token buckets as gauges: how full each is, and what it gets a second."""

from collections.abc import Sequence

from nicegui import ui

from fila_cluster.client.views import ThrottleStats
from fila_cluster.figures import counted


class Gauges:
    """One bar for each bucket that a queue's messages draw on; no card at all if there are none."""

    def __init__(self) -> None:
        self._bars: dict[str, tuple[ui.label, ui.linear_progress]] = {}
        self._card = ui.card().classes("w-full p-3 gap-2").props("data-testid=throttles")
        with self._card:
            ui.label("Throttles").classes("font-semibold")
            self._rows = ui.column().classes("w-full gap-2")
        self._card.set_visibility(False)

    def show(self, throttles: Sequence[ThrottleStats]) -> None:
        """Change the gauges."""
        self._card.set_visibility(bool(throttles))
        if [each.key for each in throttles] != list(self._bars):
            self._build(throttles)
        for each in throttles:
            text, bar = self._bars[each.key]
            tokens = max(0.0, each.tokens)
            text.text = f"{tokens:,.0f} of {each.burst:,.0f} tokens, {counted(round(each.rate))} a second"
            bar.value = min(1.0, tokens / each.burst) if each.burst else 0.0
            bar.props(f"color={'negative' if tokens < 1 else 'primary'}")

    def _build(self, throttles: Sequence[ThrottleStats]) -> None:
        self._rows.clear()
        self._bars = {}
        with self._rows:
            for each in throttles:
                with ui.column().classes("w-full gap-0"):
                    with ui.row().classes("w-full justify-between"):
                        ui.label(each.key).classes("fila-mono")
                        text = ui.label().classes("fila-quiet")
                    bar = ui.linear_progress(0.0, show_value=False).props("rounded instant-feedback")
                self._bars[each.key] = (text, bar)

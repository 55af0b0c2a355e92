"""Keeping the last half hour: a history that is fed from what a watch hears, at even intervals, for whoever looks at it."""

import asyncio
import time

from fila_cluster.analysis.history import TICK_S, History
from fila_cluster.observer.watch import Watch


async def remember(watch: Watch, history: History) -> None:
    """Feed the history until cancelled; while nobody answers, with nothing."""
    due = time.monotonic()
    while True:
        history.record(time.time() if watch.latest is None else watch.heard_s, watch.latest)
        due = max(due + TICK_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())

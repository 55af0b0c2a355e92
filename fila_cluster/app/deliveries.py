"""A delivery as its handler can use it: functions call its verbs, coroutines await them, whichever client it came from."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.settling import Settlement


class ThreadDelivery(Delivery):
    """An asyncio client's delivery in a thread: its verbs block until the loop has the broker's answer."""

    _of: Delivery | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def extend(self, seconds: float) -> None:
        """Let the lease end ``seconds`` from now."""
        assert self._of is not None
        of = self._of
        self._wait(lambda: of.extend(seconds))

    def _settle(self, how: Settlement) -> None:
        assert self._of is not None
        of = self._of
        self._wait(lambda: of._settle(how))

    def _wait(self, verb: Callable[[], Any]) -> None:
        assert self._loop is not None

        async def awaited() -> None:
            await verb()

        asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def __del__(self) -> None:
        """Report nothing: the delivery that this one is a view of does."""


class AwaitedDelivery(AsyncDelivery):
    """A blocking client's delivery for a coroutine: its verbs are awaited, and block the loop for the broker's answer."""

    _of: Delivery | None = None

    async def extend(self, seconds: float) -> None:  # type: ignore[override]  # as of every AsyncDelivery
        """Let the lease end ``seconds`` from now."""
        assert self._of is not None
        self._of.extend(seconds)

    def _settle(self, how: Settlement) -> None:
        assert self._of is not None
        of = self._of

        async def settled() -> None:
            of._settle(how)

        return cast(None, settled())  # AsyncDelivery says what it is

    def __del__(self) -> None:
        """Report nothing: the delivery that this one is a view of does."""


def for_thread(delivery: Delivery) -> Delivery:
    """Return a delivery for a function that runs in a thread, beside the loop that runs now."""
    if not isinstance(delivery, AsyncDelivery):
        return delivery
    view = ThreadDelivery(delivery._lease, delivery._index, delivery._packed, _settled=True, _of=delivery)
    view._loop, view._trace = asyncio.get_running_loop(), delivery._trace
    return view


def for_coroutine(delivery: Delivery) -> Delivery:
    """Return a delivery for a coroutine."""
    if isinstance(delivery, AsyncDelivery):
        return delivery
    view = AwaitedDelivery(delivery._lease, delivery._index, delivery._packed, _settled=True, _of=delivery)
    view._trace = delivery._trace
    return view

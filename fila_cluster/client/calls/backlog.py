"""Browsing one page at a time, however large messages are. Not part of the client's everyday surface: it serves dashboards.

``browse`` gives as many messages as were asked for, in as many steps as that takes. A page here is one step: what fits into one answer
of the broker, so that a thousand messages of 16 MiB never travel because somebody looked at their ids.
"""

from typing import NamedTuple

from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.calls.steps import Browsing
from fila_cluster.client.message import MessageView
from fila_proto_zmq.commands import Browsed


class Page(NamedTuple):
    """Messages in browsing order. ``more``: there may be others behind them."""

    messages: list[MessageView]
    more: bool


async def browse_page(
    client: AsyncClient,
    queue: str,
    limit: int,
    *,
    after: str | None = None,
    fairness_key: str | None = None,
    state: str | None = None,
) -> Page:
    """Look at up to ``limit`` messages, at most 1,000 or about 1 MiB of them. Raises as ``browse`` does."""
    browsing = Browsing(queue, limit, after, fairness_key, state)
    request = browsing.next_request()
    assert request is not None
    answer: Browsed = await client._ask(request)
    browsing.answered(answer)
    return Page(browsing.result, answer.more)

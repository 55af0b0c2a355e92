"""What can be done to many dead letters, step by step: send them back, or delete them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fila_cluster import AsyncClient
from fila_cluster.client.redriving import redrive_selected
from fila_cluster.errors import MessageNotFoundError


class Step(NamedTuple):
    """Of ``seen`` letters, ``moved`` did as they were told. None seen: there is nothing left."""

    seen: int
    moved: int


class Work(Protocol):
    """Does something to the next letters. After an error it can be asked again."""

    async def advance(self, count: int) -> Step:
        """Do it to up to ``count`` of them."""
        ...


class PickedRedrive:
    """Sends letters back that somebody picked."""

    def __init__(self, client: AsyncClient, dlq: str, ids: Sequence[str]) -> None:
        self._client, self._dlq, self._left = client, dlq, list(ids)

    async def advance(self, count: int) -> Step:
        """Those that are leased, gone, or have nowhere to go stay."""
        ids = self._left[:count]
        moved = await redrive_selected(self._client, self._dlq, ids) if ids else 0
        del self._left[: len(ids)]
        return Step(len(ids), moved)


class FullRedrive:
    """Sends back what lies there, in the order of the queue."""

    def __init__(self, client: AsyncClient, dlq: str) -> None:
        self._client, self._dlq = client, dlq

    async def advance(self, count: int) -> Step:
        """Until none is left that is pending and has somewhere to go."""
        moved = await self._client.redrive(self._dlq, count)
        return Step(moved, moved)


class PickedDeletion:
    """Deletes letters that somebody picked."""

    def __init__(self, client: AsyncClient, dlq: str, ids: Sequence[str]) -> None:
        self._client, self._dlq, self._left = client, dlq, list(ids)

    async def advance(self, count: int) -> Step:
        """Leased ones stay; those that are gone already don't count."""
        ids = self._left[:count]
        removed = await asyncio.gather(*(self._remove(each) for each in ids))
        del self._left[: len(ids)]
        return Step(len(ids), sum(removed))

    async def _remove(self, message_id: str) -> bool:
        try:
            return await self._client.cancel(self._dlq, message_id)
        except MessageNotFoundError:
            return False

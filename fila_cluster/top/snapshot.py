"""All that there is to see, once, as plain data for programs. Durations are seconds; what is not known is null."""

import asyncio
from dataclasses import asdict
from typing import Any

from fila_cluster.top.lookout import Lookout
from fila_proto_zmq.errors import FilaError


async def snapshot(lookout: Lookout, interval_s: float, queue: str | None) -> dict[str, Any]:
    """Look twice, ``interval_s`` apart, so that there are rates. Raises :class:`FilaError` if the cluster does not answer."""
    await lookout.look(queue)
    _checked(lookout)
    await asyncio.sleep(interval_s)
    await lookout.look(queue)
    _checked(lookout)
    assert lookout.picture is not None
    seen = asdict(lookout.picture)
    return seen | ({} if lookout.close is None else {"queue": _without_excuse(asdict(lookout.close))})


def _checked(lookout: Lookout) -> None:
    if lookout.picture is None:
        raise FilaError(f"no snapshot: {lookout.why_not}")
    if lookout.close is not None and lookout.close.why_not:
        raise FilaError(lookout.close.why_not)


def _without_excuse(close: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in close.items() if name != "why_not"}

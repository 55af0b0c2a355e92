"""The errors for requests that are not taken in, or not finished: the same at the router and at a worker's client socket."""

from typing import Final

from fila_admission.in_flight import InFlight
from fila_proto_zmq.errors import OverloadedError, ShardUnavailableError

RETRY_S: Final = 0.2
"""When to try again after a refusal: a worker restarts in about half a second, an overload passes in a tenth."""


def unavailable(shard: int) -> ShardUnavailableError:
    """Return the error for a shard without a live worker."""
    return ShardUnavailableError(
        f"shard {shard} has no live worker: it comes back by itself, try again in a moment",
        retry_after=RETRY_S,
        details={"refused": True, "shard": shard},
    )


def interrupted(shard: int) -> ShardUnavailableError:
    """Return the error for a request that was forwarded before its worker was lost."""
    return ShardUnavailableError(
        f"the worker of shard {shard} was lost before it answered: whether it did the work is unknown",
        retry_after=RETRY_S,
        details={"shard": shard},
    )


def moved(shard: int) -> ShardUnavailableError:
    """Return the error for a request that names an epoch of the shard that is not the present one, at a worker's own door."""
    return ShardUnavailableError(
        f"shard {shard} is not open here in the epoch that the request names: ask the router where it is",
        retry_after=RETRY_S,
        details={"refused": True, "moved": True, "shard": shard},
    )


def overloaded(worker: str, in_flight: InFlight, client: bytes, opcode: int) -> OverloadedError:
    """Return the error for a full worker: its bound of open requests, or the client's share of that, is reached."""
    why = f"{worker} has {len(in_flight)} open requests of {in_flight.size_bytes} bytes"
    return too_busy(why, in_flight.retry_ms(client, opcode) / 1000)


def too_busy(why: str, retry_after: float = RETRY_S) -> OverloadedError:
    """Return the error for a bound that is reached."""
    return OverloadedError(f"{why}: try again in {retry_after:g} s", retry_after=retry_after, details={"refused": True})

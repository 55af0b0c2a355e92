"""The options of ``.option(…)``: read once, on the driver, and checked there, before any task starts.

Spark passes options on as text under case-insensitive names. An unknown one is refused by name, since a typo in
``dedup_window`` would otherwise only show in duplicates. ``FILA_ENDPOINT`` is the driver's: executors get it with the
options.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from fila_cluster.client import Client, checks
from fila_cluster.client.checks import endpoint_or_default, server_key_or_default
from fila_cluster.figures import duration_s
from fila_proto_zmq.errors import InvalidArgumentError

EVERYWHERE: Final = ("endpoint", "api_key", "server_key", "queue", "timeout")
READ: Final = (*EVERYWHERE, "fairness_key", "state", "pushdown")
STREAM_READ: Final = (*EVERYWHERE, "max_rows_per_batch", "max_rows", "reservation_timeout")
SPARKS_OWN: Final = ("path", "paths", "checkpointlocation")
"""Options that Spark itself may add to a source's."""

TIMEOUT_S: Final = 5.0
RETRY_FOR_S: Final = 120.0
"""A killed worker is back within 10 s, a machine within two minutes; a longer outage needs a person."""
DURATION_S_MAX: Final = 7 * 24 * 3600.0
COUNT_MAX: Final = 2**31 - 1


def text_of(options: Mapping[str, str], name: str) -> str | None:
    """Return an option's text; None if it is not given, or empty."""
    for key, value in options.items():
        if key.lower() == name:
            return str(value) or None
    return None


def seconds_of(options: Mapping[str, str], name: str, default_s: float) -> float:
    """Return an option that is a duration above 0, in seconds."""
    text = text_of(options, name)
    if text is None:
        return default_s
    try:
        value_s = duration_s(text)
    except ValueError as wrong:
        raise InvalidArgumentError(f"option {name}: {wrong}") from None
    if not 0 < value_s <= DURATION_S_MAX:
        raise InvalidArgumentError(f"option {name}: {text!r} is out of bounds, use more than 0 and at most 7 days")
    return value_s


def count_of(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a whole number above 0."""
    text = text_of(options, name)
    if text is None:
        return default
    if not text.isdecimal() or not 0 < int(text) <= COUNT_MAX:
        raise InvalidArgumentError(f"option {name}: {text!r} is not valid, use a whole number from 1 to {COUNT_MAX}")
    return int(text)


def queue_of(options: Mapping[str, str]) -> str | None:
    """Return the option ``queue`` as it was given, a name or a pattern; None if it was not."""
    return text_of(options, "queue")


def one_queue_of(options: Mapping[str, str]) -> str | None:
    """Return the option ``queue``, which must be one queue's name; None if it was not given."""
    text = queue_of(options)
    return None if text is None else checks.queue_name(text)


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise :class:`InvalidArgumentError` for an option that is neither in ``known`` nor Spark's own."""
    for name in options:
        if name.lower() not in known and name.lower() not in SPARKS_OWN:
            raise InvalidArgumentError(f"unknown option {name!r}: the options here are {', '.join(sorted(known))}")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How to reach the broker. Goes to the executors with their tasks."""

    endpoint: str
    api_key: str | None = None
    server_key: str | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read it from options; without the option, the endpoint comes from the environment."""
        api_key, server_key = text_of(options, "api_key"), text_of(options, "server_key")
        try:
            server_key_or_default(server_key)
        except InvalidArgumentError as wrong:
            raise InvalidArgumentError(f"option {wrong}") from None
        endpoint = endpoint_or_default(text_of(options, "endpoint"))
        return cls(endpoint, api_key, server_key, seconds_of(options, "timeout", TIMEOUT_S))

    def client(self, *, timeout_s: float | None = None) -> Client:
        """Return a client of that broker; close it. ``timeout_s``: instead of the option's."""
        return Client(self.endpoint, api_key=self.api_key, server_key=self.server_key, timeout=timeout_s or self.timeout_s)

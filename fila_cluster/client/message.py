"""What a producer hands over: a payload, its headers and how to schedule it."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

BytesLike = bytes | bytearray | memoryview


@dataclass(slots=True)
class Message:
    """One message of ``enqueue_many``, with the options of ``enqueue``. Durations are seconds.

    Nothing is checked here: ``enqueue_many`` reports a bad message in its place of the :class:`BatchError`, and sends the
    others.
    """

    payload: BytesLike
    headers: Mapping[str, str] | None = None
    _: KW_ONLY
    fairness_key: str | None = None
    """The group that it shares a queue's capacity as; None: ``"default"``."""
    weight: int | None = None
    """The key's share of delivery from now on; None: as it is."""
    throttle_keys: Iterable[str] | None = None
    """Token buckets that must have tokens before it is delivered, a list or tuple; all of them are charged together."""
    priority: int = 0
    """Within the fairness key, lower first."""
    cost: float = 1
    """What one delivery takes from its key's share and its token buckets; to a thousandth."""
    delay: float = 0.0
    deliver_at: datetime | None = None
    """Not before this instant (timezone-aware); the later of it and ``delay`` counts."""
    ttl: float | None = None
    """How long it may wait for its delivery before it expires; None: as the queue says."""
    lease: float | None = None
    """This message's own visibility timeout; None: the queue's."""
    dedup_id: str | None = None
    """A second message with the same one, within the dedup window, stores nothing and has the first one's id."""

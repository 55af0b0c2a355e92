"""The meaning of the runtime config's keys, in words and as throttles with their counters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import Metrics

FREE_TEXT: Final = "for hooks to read, with fila.get"


class KeyFamily(NamedTuple):
    """Keys of one kind."""

    key: str
    value: str
    meaning: str


FAMILIES: Final = (
    KeyFamily(
        "throttle:<key>:rate",
        "tokens a second",
        "the limit of a throttle key over the whole cluster; without one there is no limit",
    ),
    KeyFamily(
        "throttle:<key>:burst", "tokens", "how many it may save up; without one as many as it gets in a second, 1 at least"
    ),
    KeyFamily("throttle.<key>", "rate,burst", "both in one: another way to write and to read the same"),
    KeyFamily(
        "namespace:<ns>:max_enqueues_per_minute",
        "a number",
        "what the queues <ns>/… may take in together; beyond it, RateLimitedError",
    ),
    KeyFamily("any other", "any text", FREE_TEXT + "(key)"),
)


def meaning(key: str) -> str:
    """Return the meaning of a stored key."""
    kind, _, rest = key.partition(":")
    name, _, what = rest.rpartition(":")
    match kind, what:
        case "throttle", "rate":
            return f"tokens a second for throttle key {name}"
        case "throttle", "burst":
            return f"tokens that throttle key {name} may save up"
        case "namespace", "max_enqueues_per_minute":
            return f"messages a minute into the queues {name}/…"
    return FREE_TEXT


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    """A throttle key that has a rate. None is unknown: the key is not in use, or not among a shard's busiest."""

    key: str
    rate: float
    burst: float
    tokens: float | None
    passes: int | None
    hits: int | None


def throttle_rows(config: Mapping[str, str], metrics: Metrics) -> list[ThrottleRow]:
    """Return all throttle keys with a rate; in use or not."""
    limits = ((bucket, limit) for bucket, limit in runtime_config.all_limits(config) if not bucket.startswith("\0"))
    seen = _seen(metrics)
    return [
        ThrottleRow(key, limit.rate_milli / 1000, limit.burst_micro / 1e6, *seen.get(key, (None, None, None)))
        for key, limit in limits
    ]


def _seen(metrics: Metrics) -> dict[str, tuple[float, int, int]]:
    """Return tokens, passes and hits by key.

    The number of a shard that has not asked for long is too high: the least number is the right one.
    """
    seen: dict[str, tuple[float, int, int]] = {}
    for each in (each for worker in metrics.workers for shard in worker.shards for each in shard.throttles):
        tokens, passes, hits = seen.get(each.key, (each.tokens, 0, 0))
        seen[each.key] = (min(tokens, each.tokens), passes + each.passes, hits + each.hits)
    return seen


def wrong_field(error: str) -> str:
    """Return the field of a throttle's form for an error of the broker: ``key``, ``rate`` or ``burst``."""
    if ":burst' =" in error:
        return "burst"
    return "key" if error.startswith(("config key", "a config key", "a throttle key")) else "rate"

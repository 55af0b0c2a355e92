"""Which tokens a lane's messages lack: the bucket that keeps them longest, what is in it, and when it will have enough.

A shard knows the last level of a bucket that the router's bank sent, and adds what comes in since at the bucket's rate
(:meth:`BucketLevels.tokens_in`). It does not see what other shards take meanwhile: a time in an answer is the earliest one.
"""

from typing import TYPE_CHECKING, NamedTuple

from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.explain.text import reason, span
from fila_worker.core.model.lane_tokens import TOKEN
from fila_worker.core.model.lanes import extension_of, head
from fila_worker.core.model.token_client import MICRO_PER_MILLI

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_proto_zmq.runtime_config import Limit
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State


def tokens(state: "State", lane: "Lane", now_ms: int, need: int | None = None) -> "Reason | None":
    """Return as a reason that the first message of a lane waits for its throttle keys.

    ``need``: the message's cost, if the caller knows it.
    """
    throttling = state.token_client
    if lane.throttle is None:
        return None
    parked_until_ms = throttling.parks.until(lane.throttle_keys)
    if parked_until_ms > now_ms:
        name = max(lane.throttle_keys, key=lambda each: throttling.parks.get(each, 0))
        remaining_ms = parked_until_ms - now_ms
        text = f"throttle key {name!r} delivers nothing for another {span(remaining_ms)}: a consumer deferred a message"
        return reason(ReasonCode.PARKED, text, parked_until_ms, throttle_key=name, remaining_ms=remaining_ms)
    limited = [name for name in lane.throttle_keys if name in throttling.limits]
    if not limited:
        return None
    if need is None:
        need = _need(state, lane)
    lacks = [_Lack.of(state, name, need, now_ms) for name in limited]
    worst = max(lacks, key=lambda lack: lack.order)
    if not lane.blocked and (lane.tokens >= need or worst.missing <= 0):
        return None
    return worst.reason(now_ms, [*lane.throttle_keys])


def _need(state: "State", lane: "Lane") -> int:
    """Return the cost of a lane's first message, in millionths of a token."""
    if lane.blocked:
        return lane.need
    message_key, kept = head(state, lane)
    return extension_of(kept or state.read([message_key])[0]).cost_milli * MICRO_PER_MILLI


class _Lack(NamedTuple):
    """What a bucket lacks for a message. Amounts are in millionths of a token."""

    name: str
    need: int
    level: int
    limit: "Limit"

    @classmethod
    def of(cls, state: "State", name: str, need: int, now_ms: int) -> "_Lack":
        limit = state.token_client.limits[name]
        level = state.token_client.levels.tokens_in(name, limit, now_ms)
        return cls(name, need, level, limit)

    @property
    def missing(self) -> int:
        return self.limit.level_for(self.need) - self.level

    @property
    def wait_ms(self) -> int | None:
        """How long until the bucket has enough; None: for ever."""
        if self.missing <= 0:
            return 0
        rate = self.limit.rate_milli  # millionths a millisecond
        return -(-self.missing // rate) if rate else None

    @property
    def order(self) -> tuple[float, int]:
        """The sort key: of several lacks, the largest one ends last."""
        wait_ms = self.wait_ms
        return (float("inf") if wait_ms is None else wait_ms, self.missing)

    def reason(self, now_ms: int, throttle_keys: list[str]) -> "Reason":
        level, burst, rate, cost, wait_ms = (
            self.level / TOKEN, self.limit.burst_micro / TOKEN, self.limit.rate_milli / 1000, self.need / TOKEN, self.wait_ms,
        )  # fmt: skip
        what = "the next one" if cost == 1 else f"the {cost:g} that it costs"
        when = (
            "none will come"
            if wait_ms is None
            else f"{what} in {span(wait_ms)}"
            if wait_ms
            else "requested, perhaps by other shards too"
        )
        text = f"throttled by {self.name}: {level:.1f} of {burst:g} tokens, {rate:g}/s, {when}"
        details = {
            "throttle_key": self.name, "tokens": round(level, 3), "burst": burst, "rate": rate, "cost": cost, "wait_ms": wait_ms,
            "throttle_keys": throttle_keys,
        }  # fmt: skip
        return reason(ReasonCode.THROTTLED, text, now_ms + wait_ms if wait_ms else 0, **details)

"""How many wrong API keys an address may try: one rule for greetings at the router and for logins at the observer.

Each address has a token bucket. It is kept as the generic cell rate algorithm does (ITU-T I.371): one number for an address,
the time at which its bucket is full again. An attempt that is refused takes nothing, so an address that tries again and again
is still answered at the rate.
"""

from collections import OrderedDict


class LoginAttempts:
    """The attempts that addresses have left.

    Invariant: at most ``addresses_max`` addresses are remembered. Beyond, the one whose last attempt is longest ago is
    forgotten: its bucket is full.
    """

    def __init__(self, attempts_max: int, refill_ms: int, addresses_max: int) -> None:
        """``attempts_max``: those of one address at once. It gets one more every ``refill_ms``."""
        self._spent_ms_max = (attempts_max - 1) * refill_ms
        """The time until a bucket is full, if one attempt is left in it."""
        self._refill_ms = refill_ms
        self._addresses_max = addresses_max
        self._full_at_ms: OrderedDict[str, int] = OrderedDict()
        """By address, the one with the latest attempt last."""

    def __len__(self) -> int:
        return len(self._full_at_ms)

    def take(self, address: str, now_ms: int) -> bool:
        """Take an attempt of an address. Return whether it had one left. ``now_ms`` never goes back."""
        full_at_ms = max(now_ms, self._full_at_ms.pop(address, now_ms))
        has_one = full_at_ms - now_ms <= self._spent_ms_max
        self._full_at_ms[address] = full_at_ms + self._refill_ms if has_one else full_at_ms
        if len(self._full_at_ms) > self._addresses_max:
            self._forget_oldest()
        return has_one

    def give_back(self, address: str, now_ms: int) -> None:
        """Give an attempt back to an address: its key is not known to be wrong."""
        full_at_ms = self._full_at_ms.get(address, now_ms) - self._refill_ms
        if full_at_ms > now_ms:
            self._full_at_ms[address] = full_at_ms
        else:
            self._full_at_ms.pop(address, None)

    def _forget_oldest(self) -> None:
        self._full_at_ms.popitem(last=False)

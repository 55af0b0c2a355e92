"""What the token bank has to say to shards: grants, of each account the newest only, and parked throttle keys."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fila_proto_zmq.commands import Grant, Grants
from fila_router.core.bucket import Account, Bucket, Session

NOTICE_MS: Final = 10
"""Who waits for less is not told so: the tokens themselves will say it."""

REMIND_MS: Final = 200
"""A shard that asks again for what it was told this long ago has not heard it."""

LEVEL_MIN: Final = -(2**62)
"""The deepest debt that is told: what travels has 64 bits."""


class GrantUpdates:
    """Accounts, each with what its shard is to be told: its total, and how long it has to wait (0: not at all)."""

    def __init__(self) -> None:
        self._waits: dict[Session, dict[Account, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._waits)

    def tell(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Tell an account's total, and that it has to wait for ``wait_ms``."""
        account.told_ms = now_ms
        self._waits.setdefault(account.session, {})[account] = wait_ms

    def announce(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Tell an account that it has to wait, if that is worse than what it knows and worth a frame."""
        until_ms = account.told_until_ms
        if wait_ms >= NOTICE_MS and (until_ms is None or now_ms + wait_ms > until_ms + NOTICE_MS + wait_ms // 8):
            account.told_until_ms = now_ms + wait_ms
            self.tell(account, wait_ms, now_ms)

    def unheard(self, account: Account, now_ms: int) -> bool:
        """Return whether an account that asks again should be told again."""
        return account.told_ms is None or now_ms - account.told_ms >= REMIND_MS

    def drop(self, session: Session, account: Account | None = None) -> None:
        """There is nothing to tell any more to an account, or to a whole session."""
        if account is None:
            self._waits.pop(session, None)
        else:
            self._waits.get(session, {}).pop(account, None)

    def take(self, buckets_of: Callable[[Account], Iterable[Bucket]]) -> list[Grants]:
        """Return all that there is to tell, a frame for each shard, with the levels of the buckets concerned."""
        waits, self._waits = self._waits, {}
        return [_grants(session, told, buckets_of) for session, told in waits.items() if told]


def _grants(session: Session, waits: dict[Account, int], buckets_of: Callable[[Account], Iterable[Bucket]]) -> Grants:
    grants = [Grant(list(account.keys), account.granted, wait_ms) for account, wait_ms in waits.items()]
    concerned = {bucket.key: bucket for account in waits for bucket in buckets_of(account)}
    levels = [(bucket.key, max(bucket.level, LEVEL_MIN), bucket.rate, bucket.burst) for bucket in concerned.values()]
    return Grants(session.shard, session.number, grants, levels)


PARKS_MAX: Final = 100_000
"""Beyond, those that end first are forgotten."""


class Parks:
    """Parked throttle keys with the times until when, Unix ms."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def merge(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Take in what somebody knows; returns what of it is news."""
        known = self._until_ms
        news = {key: until_ms for key, until_ms in parks.items() if until_ms > max(now_ms, known.get(key, 0))}
        known |= news
        if len(known) > PARKS_MAX:
            self._until_ms = dict(sorted(known.items(), key=lambda park: park[1])[-PARKS_MAX:])
        return news

    def unknown_to(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Return what somebody who knows ``parks`` should be told."""
        self._until_ms = {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > now_ms}
        return {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > parks.get(key, 0)}

"""The token bank's updates for shards: of each account the newest grant only."""

from collections.abc import Callable, Iterable
from typing import Final

from fila_proto_zmq.commands import Grant, Grants
from fila_router.core.tokens.bucket import Account, Bucket, ShardSession

NOTICE_MS: Final = 10
"""A shorter wait is not reported: the tokens themselves come soon."""

REMIND_MS: Final = 200
"""A shard that asks again this long after an update has not received it."""

LEVEL_MIN: Final = -(2**62)
"""The deepest debt that is reported: the wire has 64 bits."""


class GrantUpdates:
    """Accounts with an update for their shard: the total, and how long to wait (0: not at all)."""

    def __init__(self) -> None:
        self._waits: dict[ShardSession, dict[Account, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._waits)

    def report(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Report an account's total, and that it has to wait for ``wait_ms``."""
        account.updated_ms = now_ms
        self._waits.setdefault(account.session, {})[account] = wait_ms

    def announce(self, account: Account, wait_ms: int, now_ms: int) -> None:
        """Report a wait, if it is longer than the reported one and worth a frame."""
        until_ms = account.reported_until_ms
        if wait_ms >= NOTICE_MS and (until_ms is None or now_ms + wait_ms > until_ms + NOTICE_MS + wait_ms // 8):
            account.reported_until_ms = now_ms + wait_ms
            self.report(account, wait_ms, now_ms)

    def is_overdue(self, account: Account, now_ms: int) -> bool:
        """Return whether an account that asks again needs its update again."""
        return account.updated_ms is None or now_ms - account.updated_ms >= REMIND_MS

    def drop(self, session: ShardSession, account: Account | None = None) -> None:
        """Drop the update of an account, or of a whole session."""
        if account is None:
            self._waits.pop(session, None)
        else:
            self._waits.get(session, {}).pop(account, None)

    def take(self, buckets_of: Callable[[Account], Iterable[Bucket]]) -> list[Grants]:
        """Return all updates, a frame for each shard, with the levels of the buckets concerned."""
        waits, self._waits = self._waits, {}
        return [_grants(session, updates, buckets_of) for session, updates in waits.items() if updates]


def _grants(session: ShardSession, waits: dict[Account, int], buckets_of: Callable[[Account], Iterable[Bucket]]) -> Grants:
    grants = [
        Grant(list(account.keys), account.granted, wait_ms, account.refused, account.outstanding < account.most)
        for account, wait_ms in waits.items()
    ]
    concerned = {bucket.key: bucket for account in waits for bucket in buckets_of(account)}
    levels = [(bucket.key, max(bucket.level, LEVEL_MIN), bucket.rate, bucket.burst) for bucket in concerned.values()]
    return Grants(session.shard, session.number, grants, levels)

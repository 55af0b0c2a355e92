"""When which bucket is to be served: each at most once, the earliest first."""

from collections.abc import Iterator

from sortedcontainers import SortedSet

from fila_router.core.bucket import Bucket


class Agenda:
    """Appointments of buckets. Invariant: a bucket is in it at its ``due_ms``, or has none."""

    def __init__(self) -> None:
        self._dates: SortedSet[tuple[int, str]] = SortedSet()

    def put_down(self, bucket: Bucket, due_ms: int | None) -> None:
        """Serve ``bucket`` at ``due_ms`` and not when it was due before; None: not at all."""
        if bucket.due_ms == due_ms:
            return
        if bucket.due_ms is not None:
            self._dates.remove((bucket.due_ms, bucket.key))
        bucket.due_ms = due_ms
        if due_ms is not None:
            self._dates.add((due_ms, bucket.key))

    def first_ms(self) -> int | None:
        """When the first bucket is due."""
        return self._dates[0][0] if self._dates else None

    def due(self, now_ms: int) -> str | None:
        """The key of the bucket that is due first, if one is."""
        return self._dates[0][1] if self._dates and self._dates[0][0] <= now_ms else None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._dates)

"""How much a batch may hold, in the words of PySpark, which has them since 4.2. Before, a batch is always of the usual size."""

from typing import Any

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.0 and 4.1

    class ReadLimit:  # type: ignore[no-redef]
        """A limit on a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """None."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """So many rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Marks readers that can stop at what is there now."""


def rows_of(limit: Any, usual: int) -> int | None:
    """How many rows a limit allows; None: all there are."""
    if isinstance(limit, ReadAllAvailable):
        return None
    return int(limit.max_rows) if isinstance(limit, ReadMaxRows) else usual


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "rows_of"]

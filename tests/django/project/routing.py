"""A router of Django: rows are read from a replica that has none of them yet."""

from typing import Any


class ReadFromReplica:
    def db_for_read(self, model: Any, **_: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **_: Any) -> str:
        return "default"

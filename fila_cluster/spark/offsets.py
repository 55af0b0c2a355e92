"""Offsets of a stream: the name of the reservation that holds a batch.

A queue has no positions. What Spark keeps in its checkpoint as the end of a batch is therefore which reservation holds the
batch's messages, on which queues; with it any process may fetch, renew and acknowledge them. A batch's name follows from
the one before it, so a driver that reserved and died before Spark wrote the offset down finds its messages again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

VERSION: Final = 1
_MARK: Final = "fila"


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch."""

    stream: str = ""
    """Who reads: made up with the first batch, and kept in the checkpoint. Empty: there was no batch yet."""
    batch: int = 0
    """Batches that had messages, counted from 1."""
    endpoint: str = ""
    """Of the broker, as the driver reaches it."""
    queues: Mapping[str, int] = field(default_factory=dict)
    """How many messages of each queue are in it."""

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self:
        """From what Spark kept."""
        if offset.get(_MARK) != VERSION:
            raise ValueError(f"the checkpoint was written by another version, or another source: {dict(offset)!r}")
        return cls(offset["stream"], offset["batch"], offset["endpoint"], offset["queues"])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """From the text of a progress report; None if it is of another source."""
        try:
            offset = msgspec.json.decode(text)
            return cls.of(offset) if isinstance(offset, dict) else None
        except (msgspec.MsgspecError, ValueError, KeyError):
            return None

    def kept(self) -> dict[str, Any]:
        """For Spark to keep, as JSON."""
        return {
            _MARK: VERSION, "stream": self.stream, "batch": self.batch, "endpoint": self.endpoint, "queues": dict(self.queues),
        }  # fmt: skip

    @property
    def reservation(self) -> str:
        """The name of the reservation that holds its messages."""
        return f"spark/{self.stream}/{self.batch}"

    def following(self, endpoint: str) -> Self:
        """The next batch's offset, nothing reserved yet."""
        return replace(self, stream=self.stream or uuid4().hex, batch=self.batch + 1, endpoint=endpoint, queues={})

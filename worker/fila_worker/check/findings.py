"""The findings of a check, and the changes that repair them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fila_worker.core.model.ledger import LaneCounts

SHOWN_MAX: Final = 20
"""The findings of one kind that are kept. The others are counted."""


class RecordChange(NamedTuple):
    """A record to write, or to delete if ``value`` is None."""

    family: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``kind``: a word for it. ``text``: for people, with the key or queue.

    ``changes`` and counts for the ledger repair it: of ``lanes`` by lane id, ``sizes`` by queue id, and the shard's
    ``counters`` (sequence, lane). Applied together in one batch they leave a whole shard, whatever else is wrong.
    """

    kind: str
    text: str
    queue: str | None = None
    file: str | None = None
    changes: tuple[RecordChange, ...] = ()
    lanes: dict[int, LaneCounts] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    counters: tuple[int, int] | None = None
    opening_repairs: bool = False
    """Whether it is gone when the database has been opened for writing."""

    @property
    def repairable(self) -> bool:
        """Whether ``--repair`` can put it right."""
        return bool(self.changes or self.lanes or self.sizes or self.counters or self.opening_repairs)


class Findings:
    """The findings of a shard: all are counted, some of each kind are kept."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.repairable = 0
        self.damaged_files: set[str] = set()

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there are not many of its kind."""
        self.counts[finding.kind] += 1
        self.repairable += finding.repairable
        if finding.file is not None:
            self.damaged_files.add(finding.file)
        if self.counts[finding.kind] <= SHOWN_MAX:
            self.kept.append(finding)

    def add_all(self, findings: Iterable[Finding]) -> None:
        """Add each."""
        for finding in findings:
            self.add(finding)

    def omitted(self) -> Iterator[tuple[str, int]]:
        """Yield the kinds of which not all findings are kept, with the number of the others."""
        for kind, count in self.counts.items():
            if count > SHOWN_MAX:
                yield kind, count - SHOWN_MAX

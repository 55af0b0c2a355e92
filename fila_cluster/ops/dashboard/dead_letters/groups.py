"""Dead letters by kind of error: the common part of errors, and the fields that are kept of each letter."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import browse_page
from fila_cluster.client.message import MessageView
from fila_cluster.errors import InvalidFrameError

PATTERN_CHARS_MAX: Final = 300
"""Errors that differ only after this are one kind: that part is a stack trace.

A character costs a quarter of a microsecond.
"""

NO_ERROR: Final = "(no error given)"

_PARTS: Final = {
    "kept": r"^[45]\d\d(?=[ :-])|\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?: code)?|code|errno|error|exit code)[ :=#]{0,3}\d{1,5}\b",
    "id": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "time": r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    "address": r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b",
    "hex": r"\b0x[0-9a-f]+\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b",
    "text": r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`",
    "n": r"\d+(?:[.,:]\d+)*",
}

_VARYING: Final = re.compile("|".join(f"(?P<{name}>{part})" for name, part in _PARTS.items()), re.IGNORECASE)


@lru_cache(maxsize=10_000)
def pattern(error: str) -> str:
    """Return the kind of an error, e.g. ``timeout after <n> s for <text>``."""
    text = " ".join(error[:PATTERN_CHARS_MAX].split())
    if len(error) > PATTERN_CHARS_MAX:
        text = text.rpartition(" ")[0] or text  # part of a number is another number
    return _VARYING.sub(lambda it: it.group() if it.lastgroup == "kept" else f"<{it.lastgroup}>", text) or NO_ERROR


UNKNOWN_REASON: Final = "not dead-lettered"
"""The reason of a message that was enqueued into a queue that collects dead letters of others."""


@dataclass(slots=True)
class DeadLetter:
    """The kept fields of a dead letter, without payload and headers. ``before``: the id of its predecessor in the browse."""

    id: str
    before: str | None
    fairness_key: str
    state: str
    attempts: int
    reason: str
    error: str
    """The beginning of its error."""
    source_queue: str
    dead_lettered_at: datetime
    kind: str
    """The kind of its error."""


@dataclass(slots=True)
class Group:
    """Letters with errors of one kind. ``letters`` are in the order in which they were read."""

    kind: str
    letters: list[DeadLetter] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        """The ids of all its letters."""
        return [letter.id for letter in self.letters]

    @property
    def first_at(self) -> datetime:
        """When the first of them was dead-lettered."""
        return min(letter.dead_lettered_at for letter in self.letters)

    @property
    def last_at(self) -> datetime:
        """When the last of them was dead-lettered."""
        return max(letter.dead_lettered_at for letter in self.letters)

    @property
    def example(self) -> str:
        """The error of the last of them, with its numbers and names."""
        return max(self.letters, key=lambda letter: letter.dead_lettered_at).error

    def reasons(self) -> Counter[str]:
        """Return how many of them have each reason."""
        return Counter(letter.reason for letter in self.letters)

    def fairness_keys(self) -> Counter[str]:
        """Return how many of them have each fairness key."""
        return Counter(letter.fairness_key for letter in self.letters)


def letter_of(view: MessageView, before: str | None) -> DeadLetter:
    """Return the kept fields of a browsed message. Raises :class:`InvalidFrameError` for a malformed record."""
    error = view.error
    return DeadLetter(
        view.id,
        before,
        view.fairness_key,
        view.state,
        view.attempts,
        view.reason or UNKNOWN_REASON,
        error[:PATTERN_CHARS_MAX],
        view.source_queue or "",
        view.dead_lettered_at or view.enqueued_at,
        pattern(error),
    )


def grouped(letters: Iterable[DeadLetter], reason: str | None = None) -> dict[str, Group]:
    """Return groups by the kind of error, the largest first; only of letters with this ``reason``, unless it is None."""
    groups: dict[str, Group] = {}
    for letter in letters:
        if reason is None or letter.reason == reason:
            groups.setdefault(letter.kind, Group(letter.kind)).letters.append(letter)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1].letters)))


def kind_shares(letters: Sequence[DeadLetter], count: int = 2) -> str:
    """Return the most frequent kinds of errors, each with its share, for people."""
    kinds = Counter(letter.kind for letter in letters).most_common(count)
    return " · ".join(f"{100 * number / len(letters):.0f} % {kind}" for kind, number in kinds)


def most_frequent(numbers: Counter[str], count: int = 3) -> str:
    """Return the most frequent ones, each with its number if there are several: ``failed (12), expired (3), 4 more``."""
    if len(numbers) == 1:
        return next(iter(numbers))
    named = [f"{name} ({number:,})" for name, number in numbers.most_common(count)]
    return ", ".join(named + ([f"{len(numbers) - count:,} more"] if len(numbers) > count else []))


LETTERS_MAX: Final = 10_000
"""More are not read: the errors of ten thousand stand for the others, too."""

STEP: Final = 250
"""Letters in one step: some ms of the shard's time and of the event loop's."""


class LetterReader:
    """``letters`` are in the order of the queue. ``is_complete``: there are no others. ``unreadable`` ones are only counted."""

    def __init__(self, client: AsyncClient, dlq: str, letters_max: int = LETTERS_MAX) -> None:
        self.letters: list[DeadLetter] = []
        self.unreadable = 0
        self.is_complete = False
        self.most = letters_max
        self._client, self._dlq = client, dlq

    async def steps(self) -> AsyncIterator[int]:
        """Read step by step; yield after each step how many letters were read. Raises the errors of ``browse``."""
        after: str | None = None
        read = 0
        while read < self.most:
            page = await browse_page(self._client, self._dlq, min(STEP, self.most - read), after=after)
            for message in page.messages:
                self._keep(message, after)
                after = message.id
            read += len(page.messages)
            self.is_complete = not page.more or not page.messages
            yield read
            if self.is_complete:
                return

    def _keep(self, message: MessageView, before: str | None) -> None:
        try:
            self.letters.append(letter_of(message, before))
        except InvalidFrameError:
            self.unreadable += 1

"""What a worker asks all others to do, until each has done it or is lost."""

from dataclasses import dataclass


@dataclass(slots=True)
class Wish:
    """A worker's request that others have yet to confirm. Invariant: it is done exactly when ``waiting`` is empty."""

    origin: bytes
    request: int
    waiting: set[bytes]


class Confirmations:
    """Open wishes, by the number that the others repeat in their answers.

    A wish ends when the slowest worker has answered or is lost, so there are no more than workers ask for in the router's patience
    with silence.
    """

    def __init__(self) -> None:
        self._open: dict[int, Wish] = {}
        self._asked = 0

    def ask(self, origin: bytes, request: int, others: set[bytes]) -> int:
        """Note a wish of ``origin`` to ``others``, at least one; return its number."""
        self._asked += 1
        self._open[self._asked] = Wish(origin, request, others)
        return self._asked

    def heard(self, number: int, identity: bytes) -> Wish | None:
        """Note one worker's answer; return the wish if this was the last one."""
        wish = self._open.get(number)
        if wish is None:
            return None
        wish.waiting.discard(identity)
        return None if wish.waiting else self._open.pop(number)

    def lose(self, identity: bytes) -> list[Wish]:
        """Wait no longer for a worker; return the wishes that were waiting for it alone."""
        ended = (self.heard(number, identity) for number in list(self._open))
        return [wish for wish in ended if wish is not None]

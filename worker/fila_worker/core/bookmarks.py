"""Where pages of a browse ended: so that the next page can be asked for by the id of a message that is gone by then."""

from collections import OrderedDict
from typing import Final

BOOKMARKS_MAX: Final = 10_000


class Bookmarks:
    """The places of the messages that were last shown, by queue and message id."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[int, tuple[int, int]], tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, queue: int, message_id: tuple[int, int], place: tuple[str, bytes]) -> None:
        """A message was shown at this place: its fairness key, and its place in line."""
        self._places[queue, message_id] = place
        if len(self._places) > BOOKMARKS_MAX:
            self._places.popitem(last=False)

    def find(self, queue: int, message_id: tuple[int, int]) -> tuple[str, bytes] | None:
        """The place of a message that was shown lately."""
        return self._places.get((queue, message_id))

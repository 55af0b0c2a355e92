"""Where pages of a browse ended: so that the next page can be asked for by the id of a message that is gone by then."""

from collections import OrderedDict

from fila_worker.core.limits import Limits


class Bookmarks:
    """The places of the messages that were last shown, by queue and message id."""

    def __init__(self, limits: Limits) -> None:
        self._count_max = limits.browse_cursors_max
        self._places: OrderedDict[tuple[int, tuple[int, int]], tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, queue: int, message_id: tuple[int, int], place: tuple[str, bytes]) -> None:
        """A message was shown at this place: its fairness key, and its place in line."""
        self._places[queue, message_id] = place
        if len(self._places) > self._count_max:
            self._places.popitem(last=False)

    def find(self, queue: int, message_id: tuple[int, int]) -> tuple[str, bytes] | None:
        """The place of a message that was shown lately."""
        return self._places.get((queue, message_id))

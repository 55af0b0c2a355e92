"""Numbers that are given out once: message ids, their sequence numbers, lanes and leases."""

from typing import Any

from fila_proto_zmq.ids import sequence, shard_of_id
from fila_proto_zmq.record import record_id
from fila_worker.core.model.ledger import decode_lane
from tests.simulation.history import History


class Places:
    """Looks at what is written, because a number that is used again shows there first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._ids: dict[tuple[int, int], tuple[int, int]] = {}
        """By shard and sequence number."""
        self._lanes: dict[tuple[int, int], tuple[Any, ...]] = {}

    def committed(self, shard: int, changes: list[Any], families: Any) -> None:
        """See a commit."""
        for change in changes:
            if len(change) == 4 or change[2] is None:
                continue
            family, key, value = change
            if family is families.messages:
                self._message(shard, value)
            elif family is families.lanes:
                self._lane(shard, key, value)

    def _message(self, shard: int, record: bytes) -> None:
        id_high, id_low = record_id(record)
        number = (shard_of_id(id_high), sequence(id_low))
        if number[0] != shard:
            return
        known = self._ids.setdefault(number, (id_high, id_low))
        if known != (id_high, id_low) and not self._history.power_cuts:
            self._history.fail("numbers", f"shard {shard} gave the sequence number {number[1]} to two messages")

    def _lane(self, shard: int, key: bytes, value: bytes) -> None:
        record = decode_lane(value)
        what = (record.queue, record.fairness_key, tuple(record.throttle_keys))
        number = (shard, int.from_bytes(key, "big"))
        known = self._lanes.setdefault(number, what)
        if known != what and not self._history.power_cuts:
            self._history.fail("numbers", f"shard {shard} gave the lane number {number[1]} to {known} and to {what}")

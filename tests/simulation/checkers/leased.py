"""Which messages are leased, by what is written and stays: so many as limits allow.

A message is leased from the commit that has its lease until the commit that ends it. What is not confirmed was told to nobody.
"""

from typing import Any

from fila_worker.core.keys import MESSAGE_KEY_BYTES
from fila_worker.core.model.acked_messages import is_mark
from fila_worker.core.model.leases import FINISHED, decode_lease, member_ended
from fila_worker.core.model.queues import QueueRecord, decode_queue
from tests.simulation.history import History


class Leased:
    """The leased messages of all shards."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._queues: dict[tuple[int, int], QueueRecord] = {}
        """By shard and id."""
        self._holders: dict[tuple[int, bytes], tuple[int, int, bool]] = {}
        """The lease of each leased message, its queue, and whether it is at most once; by shard and message key."""
        self._members: dict[tuple[int, int], list[bytes]] = {}
        """The messages of a lease, by shard and lease id."""

    def committed(self, shard: int, changes: list[Any], families: Any) -> None:
        """See a commit."""
        before = dict(self._queues)
        grown: set[tuple[int, int]] = set()
        for family, *change in changes:
            if family is families.messages:
                self._message(shard, change)
            elif family is families.leases:
                grown |= self._lease(shard, *change)
            elif family is families.queues and change[1] is not None:
                self._queues[shard, int.from_bytes(change[0], "big")] = decode_queue(change[1])
        for place in grown:
            self._check_queue(place, [each[place] for each in (before, self._queues) if place in each])

    def _message(self, shard: int, change: list[Any]) -> None:
        """Messages that are removed are leased no more."""
        if len(change) == 3:
            first, end, _ = change
            for key in [key for of, key in self._holders if of == shard and first <= key < end]:
                del self._holders[shard, key]
        elif change[1] is None:
            self._holders.pop((shard, change[0]), None)

    def _lease(self, shard: int, key: bytes, value: bytes | None) -> set[tuple[int, int]]:
        """Take the messages of a lease for leased. Return its queue, if it is a new lease."""
        lease = shard, int.from_bytes(key, "big")
        is_new = lease not in self._members
        for member in self._members.pop(lease, ()):
            if self._holders.get((shard, member), (0,))[0] == lease[1]:
                del self._holders[shard, member]
        if value is None or is_mark(value) or value.startswith(FINISHED):
            return set()
        record = decode_lease(value)
        keys = [record.keys[at : at + MESSAGE_KEY_BYTES] for at in range(0, len(record.keys), MESSAGE_KEY_BYTES)]
        self._members[lease] = [member for member in keys if member_ended(member) is None]
        for member in self._members[lease]:
            self._holders[shard, member] = lease[1], record.queue, record.at_most_once
        return {(shard, record.queue)} if is_new else set()

    def _check_queue(self, place: tuple[int, int], records: list[QueueRecord]) -> None:
        """After a new lease of a queue: not more of its messages are leased than its options allow, before or after the commit."""
        limits = [record.options.max_in_flight for record in records]
        is_bound = all(record.options.delivery != "at_most_once" for record in records)
        if not is_bound or None in limits or self._history.power_cuts:
            return
        held = [key for (of, key), (_, its, once) in self._holders.items() if (of, its) == place and not once]
        if len(held) > max(limits):
            self._history.fail(
                "in flight", f"{len(held)} messages of {records[-1].name} are leased, of at most {max(limits)}"
            )

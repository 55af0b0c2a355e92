"""Which messages are leased, by what is written and stays: so many as limits allow, of a queue and of a throttle key.

A message is leased from the commit that has its lease until the commit that ends it. What is not confirmed was told to nobody.
"""

from typing import Any

from fila_proto_zmq.names import PARTITION_MARK, is_dead_letter, whole_queue
from fila_proto_zmq.partitions import decode_definition, places_of
from fila_proto_zmq.runtime_config import PARTITIONED
from fila_worker.core.keys import MESSAGE_KEY_BYTES, lane_of
from fila_worker.core.model.acked_messages import is_mark
from fila_worker.core.model.leases import FINISHED, decode_lease, member_ended
from fila_worker.core.model.ledger import decode_lane
from fila_worker.core.model.queues import QueueRecord, decode_queue
from fila_worker.core.model.runtime_config import GENERATION
from tests.simulation.history import History


class Leased:
    """The leased messages of all shards."""

    def __init__(self, history: History, *, late_us: int) -> None:
        """``late_us``: how long an earlier limit of a throttle key may count."""
        self._history = history
        self._late_us = late_us
        self._lanes: dict[tuple[int, int], tuple[int, list[str]]] = {}
        """The queue and the throttle keys of each lane, by shard and id."""
        self._configs: dict[tuple[int, bytes], bytes] = {}
        """The records of the runtime config, by shard and key."""
        self._in_force: dict[int, int] = {}
        """The generation of each shard's config that is in force."""
        self._limits: dict[int, dict[str, int]] = {}
        """The concurrency of throttle keys, and of whole queues with partitions, that each shard has heard of."""
        self._earlier: list[tuple[int, dict[str, int]]] = []
        """The limits that shard 0 had, and until when."""
        self._unlimited: dict[str, tuple[int, int]] = {}
        """By throttle key: when a shard that knew no limit last leased one, and how many were leased then."""
        self._queues: dict[tuple[int, int], QueueRecord] = {}
        """By shard and id."""
        self._holders: dict[tuple[int, bytes], tuple[int, int, bool]] = {}
        """The lease of each leased message, its queue, and whether it is at most once; by shard and message key."""
        self._members: dict[tuple[int, int], list[bytes]] = {}
        """The messages of a lease, by shard and lease id."""
        self._new: list[int] = []
        """Leases of this commit."""

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
            elif family is families.lanes and len(change) == 2 and change[1] is not None:
                record = decode_lane(change[1])
                self._lanes[shard, int.from_bytes(change[0], "big")] = record.queue, record.throttle_keys
            elif family is families.config:
                self._config(shard, change)
            elif family is families.state and change[0] == GENERATION and change[1] is not None:
                self._in_force[shard] = int.from_bytes(change[1], "big")
        self._follow_limits(shard)
        for place in grown:
            self._check_queue(place, [each[place] for each in (before, self._queues) if place in each])
        for key in {key for lease in self._new for key in self._keys_of(shard, lease)}:
            self._check_key(shard, key)
        self._new.clear()

    def _config(self, shard: int, change: list[Any]) -> None:
        """Take a change of a shard's config, in force or not."""
        if len(change) == 3:
            first, end, _ = change
            for place in [place for place in self._configs if place[0] == shard and first <= place[1] < end]:
                del self._configs[place]
        elif change[1] is None:
            self._configs.pop((shard, change[0]), None)
        else:
            self._configs[shard, change[0]] = change[1]

    def _follow_limits(self, shard: int) -> None:
        """Take the limits of the config in force. Those before count for a while."""
        generation = self._in_force.get(shard, 0)
        front = b"\0" + generation.to_bytes(8, "big") if generation else b""
        limits: dict[str, int] = {}
        for (of, key), value in self._configs.items():
            name = key[len(front) :].decode(errors="replace") if of == shard and key.startswith(front) else ""
            if name.startswith("throttle:") and name.endswith(":concurrency"):
                limits[name.removeprefix("throttle:").removesuffix(":concurrency")] = int(value)
            elif name.startswith(PARTITIONED):
                definition = decode_definition(value.decode())
                if definition is not None and definition.places is not None:
                    limits[places_of(name.removeprefix(PARTITIONED))] = definition.places
        before = self._limits.get(shard, {})
        if shard == 0 and limits != before:
            self._earlier.append((self._history.world.now_us, before))
        self._limits[shard] = limits

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
        if is_new and not record.at_most_once:
            self._new.append(lease[1])
        return {(shard, record.queue)} if is_new else set()

    def _check_queue(self, place: tuple[int, int], records: list[QueueRecord]) -> None:
        """After a new lease of a queue: not more of its messages are leased than its options allow, before or after the commit.

        Those of a queue with partitions are counted as those of a throttle key.
        """
        limits = [record.options.max_in_flight for record in records if PARTITION_MARK not in record.name]
        is_bound = all(record.options.delivery != "at_most_once" for record in records)
        if not is_bound or not limits or None in limits or self._history.power_cuts:
            return
        held = [key for (of, key), (_, its, once) in self._holders.items() if (of, its) == place and not once]
        if len(held) > max(limits):
            self._history.fail(
                "in flight", f"{len(held)} messages of {records[-1].name} are leased, of at most {max(limits)}"
            )

    def _keys_of(self, shard: int, lease: int) -> set[str]:
        return {key for member in self._members.get((shard, lease), ()) for key in self._needs(shard, member)}

    def _needs(self, shard: int, member: bytes) -> list[str]:
        """The throttle keys of which a leased message has places. A queue with partitions is one of them."""
        _, number, at_most_once = self._holders[shard, member]
        queue = self._queues[shard, number]
        if at_most_once or is_dead_letter(queue.name):
            return []
        is_part = PARTITION_MARK in queue.name and not queue.gone
        return self._lanes[shard, lane_of(member)][1] + [places_of(whole_queue(queue.name))] * is_part

    def _check_key(self, shard: int, key: str) -> None:
        """After a new lease: not more messages of the key, or whole queue, are leased on all shards than its limit allows."""
        limit, now_us = _limit(self._limits[shard], key), self._history.world.now_us
        held = sorted(of for of, member in self._holders if key in self._needs(of, member))
        if limit is None:
            self._unlimited[key] = now_us, len(held)
        if limit is None or self._history.power_cuts:
            return
        counting = [each for until_us, each in self._earlier if now_us - until_us <= self._late_us]
        allowed = max(limit, *(_limit(each, key) or 0 for each in [self._limits.get(0, {}), *counting]))
        since_us, leased = self._unlimited.get(key, (0, 0))
        if now_us - since_us <= self._late_us and any(_limit(each, key) is not None for each in counting):
            allowed = max(allowed, leased)  # it had a limit, then none: this shard may not have heard of that
        if len(held) > allowed:
            self._history.fail(
                "concurrency", f"{len(held)} messages of {key!r} are leased on shards {held}, of at most {allowed}"
            )


def _limit(limits: dict[str, int], key: str) -> int | None:
    """The limit of a throttle key: its own, or that of the longest pattern."""
    patterns = [name for name in limits if name.endswith("*") and key.startswith(name[:-1])]
    return next((limits[name] for name in [key, *sorted(patterns, key=len, reverse=True)] if name in limits), None)

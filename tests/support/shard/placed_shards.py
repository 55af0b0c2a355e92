"""Shards whose messages need places of throttle keys, with the place bank on shard 0."""

from collections.abc import Sequence

from fila_proto_zmq.commands import Enqueue, PutConfig
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.places.bank import PlaceBank
from tests.support.shard.linked_shards import LinkedShards
from tests.support.shard.shard import Got


class PlacedShards(LinkedShards):
    """All shards of a cluster, each with a queue ``q``. Limits are set on all of them at once."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(*range(count), total=count)
        self.count = count
        self.version = 0
        for shard in range(count):
            self[shard].create()
        self.carry()

    def limit(self, key: str, most: int | None, shards: Sequence[int] | None = None) -> None:
        """Set the concurrency of a throttle key, on some shards later than on the others."""
        self.version += 1
        self.tell({f"throttle:{key}:concurrency": None if most is None else str(most)}, shards)

    def tell(self, changes: dict[str, str | None], shards: Sequence[int] | None = None) -> None:
        """Have shards apply the change of this version."""
        for shard in range(self.count) if shards is None else shards:
            self[shard].shard.put_config(PutConfig(self.version, changes), self[shard].now_ms)
            self[shard].turn()
        self.carry()

    def enqueue(self, shard: int, count: int, *keys: str, queue: str = "q", **columns: object) -> None:
        self[shard].ask(Enqueue([seal_envelope(b"x")] * count, throttle_keys=[list(keys)], **columns), queue, b"producer")  # type: ignore[arg-type]
        self.carry()

    def consume(self, shard: int, prefetch: int = 100, queue: str = "q") -> None:
        """Let a consumer take what it can get from now on."""
        self[shard].subscribe(prefetch, queue, client=b"consumer %d" % shard)
        self.carry()

    def taken(self, shard: int) -> list[Got]:
        """What the consumer of a shard got since the last call."""
        return self[shard].take_pushed(b"consumer %d" % shard)

    def ack(self, shard: int, got: list[Got], queue: str = "q") -> None:
        self[shard].ack(got, queue)
        self.carry()

    def leased(self, key: str) -> int:
        """How many messages with a throttle key are leased on all shards."""
        return sum(
            lane.throttle_keys.count(key)
            for station in self.stations.values()
            for lease in station.shard.leases.leases.values()
            for _, _, lane in lease.open_members()
        )

    @property
    def bank(self) -> PlaceBank:
        return self[0].shard.part(PlaceBank)

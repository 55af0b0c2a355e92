"""A cluster of shards with a queue of several partitions, and a road on which changes of the config may be lost."""

from collections.abc import Collection
from contextlib import suppress

import pytest

from fila_proto_zmq.commands import (
    ChangesByBroker,
    ChangesConfig,
    Command,
    ConfigChange,
    CreatePartitioned,
    DeletePartitioned,
    PutConfig,
    QueueOptions,
    UpdatePartitioned,
    UpdateQueue,
)
from fila_proto_zmq.errors import FilaError, PartitionedError
from fila_proto_zmq.names import dead_letter_name, partition_name, shard_of
from fila_proto_zmq.partitions import partition_of
from fila_proto_zmq.templates import decode_options
from tests.support.shard.linked_shards import LinkedShards
from tests.support.shard.shard import Got, ShardHarness

TOTAL = 4
ORDERS = "orders"


def key_of(partition: int, partitions: int = 4, prefix: str = "k") -> str:
    """A fairness key that belongs to this partition."""
    return next(key for number in range(10_000) if partition_of(key := f"{prefix}{number}", partitions) == partition)


class PartitionedShards(LinkedShards):
    """All shards of a cluster."""

    def __init__(self, total: int = TOTAL, **options: object) -> None:
        super().__init__(*range(total), total=total, **options)  # type: ignore[arg-type]
        self.total = total
        self.unseen: set[int] = set()
        """Shards that get no changes that shard 0 makes of itself."""

    # --- definitions --------------------------------------------------------------------------------------------------

    def deliver(self, command: Command) -> None:
        """Hand one frame over. One that asks for a change of the config makes it."""
        if not isinstance(command, ChangesByBroker):
            super().deliver(command)
        elif 0 not in self.stopped:
            with suppress(FilaError):
                self._tell_all(self[0].shard.set_config(command, self[0].now_ms), self.stopped | self.unseen)

    def change(self, command: ChangesConfig, *, unseen: Collection[int] = ()) -> ConfigChange:
        """Change the config on shard 0, and tell the other shards except some."""
        first = self[0]
        change = first.shard.set_config(command, first.now_ms)
        first.turn()
        first.finish()
        self._tell_all(change, unseen)
        return change

    def _tell_all(self, change: ConfigChange, unseen: Collection[int]) -> None:
        self[0].turn()
        for index in self.stations.keys() - {0, *unseen}:
            self.tell(index, PutConfig(change.version, change.changes))

    def convert(
        self, partitions: int, name: str = ORDERS, *, unseen: Collection[int] = (), **options: object
    ) -> ConfigChange:
        """Give partitions to a queue without any."""
        home = self[shard_of(name, self.total)]
        with pytest.raises(PartitionedError) as refusal:
            home.ask(UpdateQueue(QueueOptions(partitions=partitions, **options), ["partitions", *options]), name)  # type: ignore[arg-type]
        made = decode_options(refusal.value.details["ordinary"])
        assert made is not None
        return self.change(CreatePartitioned(name, made, ordinary=True), unseen=unseen)

    def tell(self, index: int, put: PutConfig) -> None:
        """Bring a change of the config to one shard."""
        self[index].shard.put_config(put, self[index].now_ms)
        self[index].turn()

    def catch_up(self, index: int, *, pages: bool = False) -> None:
        """Bring the whole config to a shard, as when it registers."""
        first = self[0].shard
        if pages:
            self.tell(index, PutConfig(first.config_version, {"other": "x"}, whole=True, page=0, more=True))
            self.tell(index, PutConfig(first.config_version, dict(first.config), whole=True, page=1))
        else:
            self.tell(index, PutConfig(first.config_version, dict(first.config), whole=True))
        self[index].finish()

    def define(
        self, name: str = ORDERS, *, unseen: Collection[int] = (), partitions: int | None = 4, **options: object
    ) -> ConfigChange:
        command = CreatePartitioned(name, QueueOptions(partitions=partitions, **options))  # type: ignore[arg-type]
        return self.change(command, unseen=unseen)

    def update(self, name: str = ORDERS, *, unseen: Collection[int] = (), **options: object) -> ConfigChange:
        command = UpdatePartitioned(name, QueueOptions(**options), list(options))  # type: ignore[arg-type]
        return self.change(command, unseen=unseen)

    def delete(self, name: str = ORDERS, *, unseen: Collection[int] = ()) -> ConfigChange:
        return self.change(DeletePartitioned(name), unseen=unseen)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def of(self, partition: int, name: str = ORDERS) -> ShardHarness:
        """The shard of a partition."""
        return self[shard_of(partition_name(name, partition), self.total)]

    def enqueue(self, partition: int, *payloads: bytes, key: str, name: str = ORDERS, **columns: object) -> list[str]:
        queue = partition_name(name, partition)
        return self.of(partition, name).enqueue(*payloads, queue=queue, key=key, **columns)  # type: ignore[arg-type]

    def receive(self, partition: int, count: int = 99, name: str = ORDERS) -> list[Got]:
        return self.of(partition, name).receive(count, partition_name(name, partition))

    def counts(self, partition: int, name: str = ORDERS) -> tuple[int, int, int]:
        return self.of(partition, name).counts(partition_name(name, partition))

    def dead_counts(self, partition: int, name: str = ORDERS) -> tuple[int, int, int]:
        return self.of(partition, name).counts(dead_letter_name(partition_name(name, partition)))

    def settle_down(self) -> None:
        """Let all shards do what is due now, and carry what they post."""
        self.pass_time(1)
        for _ in range(20):
            for station in self.stations.values():
                station.finish()
            self.carry()
            self.pass_time(2)


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]

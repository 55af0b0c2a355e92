"""Which worker holds which shard."""

import pytest

from fila_proto_zmq.commands import Register
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.names import shard_of
from fila_router.core import routing
from fila_router.core.routing import RoutingTable


def register(table: RoutingTable, worker: str, *offers: tuple[int, int]):
    offer = Register(worker, 1, "v", list(offers))
    table.check_offer(worker.encode(), offer)
    superseded = table.register(worker.encode(), offer, 0)
    return {(owner.name, shard) for owner, shards in superseded for shard in shards}


def owners(table: RoutingTable) -> list[str | None]:
    return [owner and owner.name for owner in table.owners]


def test_a_queue_and_its_dead_letters_share_the_shard_that_the_protocol_says():
    table = RoutingTable(7)
    for name in ("orders", "ns/orders", "a", "x" * 200):
        assert table.shard_of(name.encode()) == shard_of(name, 7)
        assert table.shard_of(f"{name}.dlq".encode()) == shard_of(name, 7)


def test_the_partitions_of_a_queue_follow_its_shard():
    table = RoutingTable(7)
    for number in (0, 3, 255):
        assert table.shard_of(f"ns/orders@{number}".encode()) == (shard_of("ns/orders", 7) + number) % 7
        assert table.shard_of(f"ns/orders.dlq@{number}".encode()) == (shard_of("ns/orders", 7) + number) % 7


@pytest.mark.parametrize(
    "key", [b"", b"a b", b"\xff\xfe", b"a/b/c", b"x" * 201, b"-" * 100_000, b"a@", b"a@256", b"a@01", b"a@1@1", b"@1"]
)
def test_a_routing_key_that_names_no_queue_is_refused(key: bytes):
    table = RoutingTable(2)
    for _ in range(2):  # what is wrong is not remembered as right
        with pytest.raises(InvalidArgumentError):
            table.shard_of(key)


def test_the_cache_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routing, "CACHED_KEYS_MAX", 10)
    table = RoutingTable(3)
    for number in range(100):
        assert table.shard_of(f"q{number}".encode()) == shard_of(f"q{number}", 3)
        assert len(table._shards) <= 10


def test_workers_own_what_they_register():
    table = RoutingTable(3)
    assert register(table, "a", (0, 1), (2, 1)) == set()
    assert register(table, "b", (1, 1)) == set()
    assert owners(table) == ["a", "b", "a"]


def test_a_higher_epoch_takes_a_shard_over():
    table = RoutingTable(2)
    register(table, "a", (0, 1), (1, 1))
    assert register(table, "b", (1, 2)) == {("a", 1)}
    assert owners(table) == ["a", "b"]


def test_a_restarted_worker_supersedes_itself():
    table = RoutingTable(2)
    register(table, "a", (0, 1), (1, 1))
    assert register(table, "a", (0, 2), (1, 2)) == {("a", 0), ("a", 1)}


def test_registering_again_unchanged_supersedes_nothing():
    table = RoutingTable(1)
    register(table, "a", (0, 1))
    assert register(table, "a", (0, 1)) == set()


def test_what_a_worker_no_longer_offers_has_no_owner():
    table = RoutingTable(2)
    register(table, "a", (0, 1), (1, 1))
    assert register(table, "a", (0, 2)) == {("a", 0), ("a", 1)}
    assert owners(table) == ["a", None]


@pytest.mark.parametrize("worker", ["a", "b"])
def test_a_lower_epoch_is_a_ghost(worker: str):
    table = RoutingTable(1)
    register(table, "a", (0, 5))
    with pytest.raises(InvalidArgumentError, match="epoch 4 is outdated"):
        register(table, worker, (0, 4))
    assert owners(table) == ["a"]


def test_the_same_epoch_under_another_name_is_a_ghost_too():
    table = RoutingTable(1)
    register(table, "a", (0, 5))
    with pytest.raises(InvalidArgumentError, match="opened by a with epoch 5"):
        register(table, "b", (0, 5))


def test_a_refused_offer_changes_nothing():
    table = RoutingTable(2)
    register(table, "a", (1, 5))
    with pytest.raises(InvalidArgumentError):
        register(table, "b", (0, 1), (1, 4))
    assert owners(table) == [None, "a"]
    assert set(table.workers) == {b"a"}


@pytest.mark.parametrize("shard", [-1, 2, 4000])
def test_a_shard_that_does_not_exist_is_refused(shard: int):
    with pytest.raises(InvalidArgumentError, match="shards 0 to 1"):
        register(RoutingTable(2), "a", (shard, 1))


def test_a_worker_says_its_own_name():
    with pytest.raises(InvalidArgumentError, match="the two names must agree"):
        RoutingTable(1).check_offer(b"a", Register("b", 1, "v", [(0, 1)]))


def test_a_worker_without_shards_is_refused():
    with pytest.raises(InvalidArgumentError, match="at least one"):
        register(RoutingTable(1), "a")


def test_a_worker_that_lost_all_its_shards_is_forgotten():
    table = RoutingTable(1)
    register(table, "a", (0, 1))
    register(table, "b", (0, 2))
    assert [status.name for status in table.status()] == ["b"]

"""How many workers and shards, and who gets which."""

import pytest

from fila_cluster.supervisor import layout
from fila_cluster.supervisor.failure import CannotStartError
from fila_cluster.supervisor.layout import Layout, lay_out


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "cores", lambda: 8)


@pytest.mark.parametrize(
    ("workers", "shards", "fixed", "expected"),
    [
        (None, None, None, (8, 8)),
        (3, None, None, (3, 3)),
        (None, 4, None, (4, 4)),
        (None, 32, None, (8, 32)),
        (2, 6, None, (2, 6)),
        (None, None, 4, (4, 4)),
        (None, None, 32, (8, 32)),
        (1, None, 4, (1, 4)),
        (4, 4, 4, (4, 4)),
    ],
)
def test_what_is_not_said_is_chosen(workers, shards, fixed, expected):
    assert lay_out(workers, shards, fixed) == Layout(*expected)


@pytest.mark.parametrize(("workers", "shards", "fixed"), [(5, 4, None), (5, None, 4)])
def test_a_worker_without_a_shard_makes_no_sense(workers, shards, fixed):
    with pytest.raises(CannotStartError, match="use --workers 4 or fewer"):
        lay_out(workers, shards, fixed)


def test_the_number_of_shards_is_fixed():
    with pytest.raises(CannotStartError, match=r"has 4 shards, not 8: .*reshard"):
        lay_out(None, 8, 4)


@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (1, 5), (2, 5), (3, 5), (5, 5)])
def test_every_shard_has_one_worker_and_no_worker_has_two_more_than_another(workers: int, shards: int):
    hands = [Layout(workers, shards).shards_of(worker) for worker in range(workers)]
    assert sorted(shard for hand in hands for shard in hand) == list(range(shards))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_this_machine_has_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert layout.cores() >= 1

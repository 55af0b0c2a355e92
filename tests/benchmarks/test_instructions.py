"""The scenes whose instructions are counted do what they say, and the counts are differences of two runs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import blocking_client
from benchmarks.inside.counted import BY_NAME, HEADERS, PAYLOAD, SCENES
from benchmarks.inside.instructions import Counts, calls
from fila_cluster import Message

FILLED = 2000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with OneCluster(tmp_path_factory.mktemp("instructions") / "data") as cluster:
        yield cluster.address


@pytest.mark.parametrize("name", [scene.name for scene in SCENES if not scene.served])
def test_a_scene_of_a_worker_makes_its_steps(name: str) -> None:
    with BY_NAME[name].open("", "") as run:
        run(2)


@pytest.mark.parametrize("name", [scene.name for scene in SCENES if scene.served])
def test_a_scene_of_a_client_makes_its_steps(name: str, address: str) -> None:
    scene = BY_NAME[name]
    with blocking_client(address) as client:
        client.create_queue(name)
        if scene.filled:
            client.enqueue_many(name, [Message(PAYLOAD, HEADERS)] * FILLED)
        with scene.open(address, name) as run:
            run(2)
        done = client.queue_stats(name)
        assert done.acked == 2 * scene.per if scene.filled else done.enqueued > 2 * scene.per


def test_counts_are_differences_for_each_thing() -> None:
    scene = replace(BY_NAME["bulk_enqueue"], steps=(1, 3), per=10)
    counts = Counts(scene, Counter(start=500, step=100), Counter(start=500, step=300))
    assert counts.by_function == {"start": 0, "step": 10}
    assert (counts.total, counts.largest(1)) == (10, [("step", 10)])


def test_calls_are_counted_by_file_and_function() -> None:
    found = calls(replace(BY_NAME["idle_turn"], steps=(1, 3)), "").by_function
    (turn,) = (
        count for name, count in found.items() if name.startswith("benchmarks/inside/turns.py") and name.endswith(" read")
    )
    assert turn == 1

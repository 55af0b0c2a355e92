"""Offsets of a stream, as Spark keeps them."""

import json

import pytest

from fila_cluster.spark.planner import Offset

FIRST = Offset("a1", 1, "tcp://h:1", {"q": 7})


def test_what_spark_kept_is_the_same_offset() -> None:
    kept = json.loads(json.dumps(FIRST.kept()))
    assert Offset.of(kept) == FIRST
    assert Offset.parse(json.dumps(kept)) == FIRST


def test_before_the_first_batch_there_is_a_constant() -> None:
    assert Offset().kept() == Offset().kept()
    assert Offset.of(Offset().kept()).queues == {}


def test_a_batch_is_named_after_the_one_before_it() -> None:
    assert FIRST.following("tcp://h:2") == FIRST.following("tcp://h:2")
    assert FIRST.following("tcp://h:2").reservation == "spark/a1/2"
    assert FIRST.following("tcp://h:2").endpoint == "tcp://h:2"
    assert FIRST.following("tcp://h:2").queues == {}


def test_streams_that_begin_have_names_of_their_own() -> None:
    first, second = Offset().following("tcp://h:1"), Offset().following("tcp://h:1")
    assert first.batch == second.batch == 1
    assert first.stream != second.stream


@pytest.mark.parametrize(
    "text", ["", "None", "null", "[1]", "{}", '{"at": 10}', '{"fila": 1}', '{"fila": 2, "stream": ""}', "{"]
)
def test_other_sources_offsets_are_none_of_ours(text: str) -> None:
    assert Offset.parse(text) is None


def test_another_sources_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the checkpoint was written by another version, or another source: \{'at': 10\}"):
        Offset.of({"at": 10})

"""Partitions: their names, their shards, which one a key has, and how their queues are kept in the runtime config."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import PARTITIONS_MAX
from fila_proto_zmq.names import (
    batch_id,
    check_new_queue_name,
    check_queue_name,
    check_routing_key,
    dead_letter_name,
    is_dead_letter,
    parse_batch_id,
    partition_name,
    root_name,
    shard_of,
    whole_queue,
)
from fila_proto_zmq.partitions import (
    Definition,
    Definitions,
    PartitionMove,
    Plan,
    decode_definition,
    encode_definition,
    partition_of,
)
from fila_proto_zmq.runtime_config import PARTITIONED

KEYS = [f"tenant-{number}" for number in range(20_000)]
QUEUES = st.from_regex(r"[a-z0-9._-]{1,9}(/[a-z0-9._-]{1,9})?", fullmatch=True).filter(lambda name: not name.endswith(".dlq"))
NUMBERS = st.integers(0, PARTITIONS_MAX - 1)
COUNTS = st.integers(1, PARTITIONS_MAX)


# --- which partition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "partitions"),
    [
        ("default", [0, 1, 1, 1, 46, 214]),
        ("tenant-1", [0, 1, 2, 6, 25, 251]),
        ("é", [0, 0, 2, 2, 2, 2]),
    ],
)
def test_all_clients_and_shards_agree(key: str, partitions: list[int]) -> None:
    assert [partition_of(key, count) for count in (1, 2, 3, 8, 64, 256)] == partitions


@given(st.text(max_size=20), COUNTS)
def test_a_key_has_a_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, 1) == 0


@pytest.mark.parametrize("partitions", [2, 3, 8, 64, 256])
def test_the_keys_are_spread_evenly(partitions: int) -> None:
    counts = Counter(partition_of(key, partitions) for key in KEYS)
    mean = len(KEYS) / partitions
    assert all(abs(counts[each] - mean) < 6 * mean**0.5 for each in range(partitions))


@given(st.text(max_size=20), st.integers(1, PARTITIONS_MAX - 1))
def test_one_more_partition_moves_a_key_to_that_one_only(key: str, partitions: int) -> None:
    assert partition_of(key, partitions + 1) in {partition_of(key, partitions), partitions}


def test_one_more_partition_moves_as_few_keys_as_possible() -> None:
    moved = sum(partition_of(key, 8) != partition_of(key, 9) for key in KEYS)
    assert abs(moved - len(KEYS) / 9) < 6 * (len(KEYS) / 9) ** 0.5


# --- names and shards -------------------------------------------------------------------------------------------------


@given(QUEUES, NUMBERS)
def test_names_of_partitions(queue: str, number: int) -> None:
    name = partition_name(queue, number)
    letters = dead_letter_name(name)
    assert letters == partition_name(dead_letter_name(queue), number)
    assert check_routing_key(name) == name
    assert check_routing_key(letters) == letters
    assert (whole_queue(name), whole_queue(letters)) == (queue, dead_letter_name(queue))
    assert (root_name(name), root_name(letters)) == (name, name)
    assert (is_dead_letter(name), is_dead_letter(letters)) == (False, True)
    assert whole_queue(queue) == queue
    for refuses in check_queue_name, check_new_queue_name:
        with pytest.raises(InvalidArgumentError):
            refuses(name)


@pytest.mark.parametrize("name", ["q@", "q@01", "q@256", "q@-1", "q@1@2", "q@x", "@1", "q@1.dlq", "q@٣", "q @1"])
def test_other_names_with_a_mark_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_routing_key(name)


@given(QUEUES, NUMBERS, st.integers(1, 64))
def test_partitions_are_on_consecutive_shards_beside_their_dead_letters(queue: str, number: int, shards: int) -> None:
    name = partition_name(queue, number)
    assert shard_of(name, shards) == (shard_of(queue, shards) + number) % shards
    assert shard_of(dead_letter_name(name), shards) == shard_of(name, shards)


@given(QUEUES, COUNTS, st.integers(1, 64))
def test_the_partitions_of_a_queue_are_even_over_the_shards(queue: str, partitions: int, shards: int) -> None:
    counts = Counter(shard_of(name, shards) for name in Plan(partitions, "key").names(queue))
    assert max(counts.values()) - min(counts[shard] for shard in range(shards)) <= 1


def test_the_first_partitions_of_many_queues_are_on_all_shards() -> None:
    counts = Counter(shard_of(partition_name(f"q{number}", 0), 8) for number in range(4000))
    assert all(abs(counts[shard] - 500) < 6 * 500**0.5 for shard in range(8))


def test_a_batch_of_a_partition() -> None:
    assert parse_batch_id(batch_id("done@3", bytes(16))) == ("done@3", bytes(16))
    with pytest.raises(InvalidArgumentError):
        parse_batch_id(batch_id("done@x", bytes(16)))


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_definition_is_text_that_people_read() -> None:
    definition = Definition(QueueOptions(max_attempts=3, partitions=4), 17)
    assert encode_definition(definition) == '{"created":17,"options":{"max_attempts":3,"partitions":4}}'
    assert decode_definition(encode_definition(definition)) == definition
    assert definition.plan == Plan(4, "key", version=17)
    assert Definition(QueueOptions(spread="message"), 1).plan == Plan(1, "message", version=1)


def test_a_definition_says_how_far_its_messages_have_moved() -> None:
    moved = Definition(QueueOptions(partitions=4), 17).moved_to(QueueOptions(partitions=2), 23, 1000)
    assert (moved.plan, moved.was_ordinary, moved.version) == (Plan(2, "key", earlier=4, held=4, version=23), False, 23)
    assert moved.plan.names("q.dlq") == [f"q.dlq@{number}" for number in range(4)]
    assert moved.move == PartitionMove(4, 4, 1000 << 20)
    further = moved._replace(move=moved.move._replace(drained=frozenset({0, 3}), empty=frozenset({3}), paused=True))
    assert decode_definition(encode_definition(further)) == further
    assert not further.move.is_over(2)
    assert PartitionMove(4, 4, 1, frozenset(range(4)), frozenset({2, 3})).is_over(2)
    assert Definition(QueueOptions(partitions=2), 17, move=PartitionMove(1, 1, 1)).was_ordinary


@given(st.text(min_size=1, max_size=9), COUNTS, COUNTS)
def test_a_key_is_looked_for_where_it_is_and_where_it_was(key: str, partitions: int, earlier: int) -> None:
    names = Plan(partitions, "key", earlier).names_for("q", key)
    assert names[0] == partition_name("q", partition_of(key, partitions))
    assert {*names} == {names[0], partition_name("q", partition_of(key, earlier))}
    assert Plan(partitions, "message", earlier).names_for("q", key) == Plan(partitions, "message", earlier).names("q")


@pytest.mark.parametrize("value", ["", "{}", '{"created":"1","options":{}}', '{"created":1,"options":{"partitions":"x"}}'])
def test_what_cannot_be_read_is_no_definition(value: str) -> None:
    assert decode_definition(value) is None
    definitions = Definitions()
    definitions.change({PARTITIONED + "q": value})
    assert (definitions.find("q"), definitions.is_unreadable("q.dlq@3"), definitions.is_unreadable("p")) == (
        None,
        True,
        False,
    )
    definitions.change({PARTITIONED + "q": None})
    assert not definitions.is_unreadable("q")


def test_options_of_a_later_version_are_left_out() -> None:
    definition = decode_definition('{"created":1,"options":{"partitions":2,"colour":"red"},"more":1}')
    assert definition == Definition(QueueOptions(partitions=2), 1)


def test_a_definition_is_found_by_all_its_names() -> None:
    definitions = Definitions()
    assert (definitions.find("q"), len(definitions)) == (None, 0)
    definition = Definition(QueueOptions(partitions=4), 1)
    definitions.change({PARTITIONED + "q": encode_definition(definition), "q": "text", "fila:template:q": "{}"})
    assert [definitions.find(name) for name in ("q", "q.dlq", "q@3", "q.dlq@3", "q@99")] == [definition] * 5
    assert [definitions.find(name) for name in ("", "qq", "q2@3", "@3")] == [None] * 4
    assert (list(definitions), definitions.changed) == (["q"], {"q"})
    definitions.change({PARTITIONED + "q": None, PARTITIONED + "p": None})
    assert (list(definitions), definitions.changed) == ([], {"q", "p"})


@given(st.text(min_size=1, max_size=9))
def test_where_a_message_goes(key: str) -> None:
    definitions = Definitions()
    definitions.change({PARTITIONED + "q": encode_definition(Definition(QueueOptions(partitions=4), 1))})
    definitions.change({PARTITIONED + "m": encode_definition(Definition(QueueOptions(partitions=4, spread="message"), 1))})
    own = partition_name("q", partition_of(key, 4))
    assert [definitions.partition_for(name, key) for name in ("q", "q@3", "q@4", "other")] == [own, "q@3", own, "other"]
    assert [definitions.partition_for(name, key) for name in ("m", "m@2")] == ["m@0", "m@2"]

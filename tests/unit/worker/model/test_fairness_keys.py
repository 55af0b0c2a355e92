"""A queue's table of fairness keys: in parts, and like one dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.commands import QueueOptions
from fila_worker.core.model.fairness_keys import FairnessKey, KeyTable
from fila_worker.core.model.queues import Queue

QUEUE = Queue(1, "q", QueueOptions())


def key(number: int) -> FairnessKey:
    return FairnessKey(f"k{number}", QUEUE)


def filled(count: int, part_max: int) -> tuple[KeyTable, list[FairnessKey]]:
    table, keys = KeyTable(part_max), [key(number) for number in range(count)]
    for each in keys:
        table.add(each)
    return table, keys


@given(st.lists(st.integers(0, 40)), st.integers(1, 9))
def test_it_is_a_dictionary_that_knows_its_order(numbers: list[int], part_max: int) -> None:
    table, model = KeyTable(part_max), dict[str, FairnessKey]()
    for number in numbers:  # a key that comes twice goes
        name = f"k{number}"
        assert table.get(name) is model.get(name)
        if name in model:
            table.remove(model.pop(name))
        else:
            model[name] = key(number)
            table.add(model[name])
        assert list(table) == list(model)
        assert list(table.values()) == list(model.values())
        assert len(table) == len(model)
        assert (name in table) == (name in model)
    for start in range(0, len(model) + 2, 3):
        for count in (1, 4, 100):
            assert table.portion(start, count) == list(model.values())[start : start + count]


def test_an_unknown_name_is_no_key() -> None:
    table, keys = filled(3, 2)
    assert table["k2"] is keys[2]
    with pytest.raises(KeyError, match="k3"):
        table["k3"]


def test_no_part_grows_beyond_its_bound() -> None:
    table, _ = filled(1000, 300)
    assert [len(part) for part in table._parts] == [300, 300, 300, 100]


def test_the_usual_table_is_one_dictionary() -> None:
    table, keys = filled(301, 300)
    for each in keys[:300]:
        table.remove(each)
    assert table.get == table._parts[0].get
    assert list(table) == ["k300"]


def test_what_is_empty_takes_no_memory() -> None:
    table, keys = filled(3000, 1000)
    for each in keys[:-10]:
        table.remove(each)
    assert [part.__sizeof__() < 10_000 for part in table._parts] == [True]


def test_parts_that_lost_most_of_their_keys_become_one() -> None:
    table, parts = KeyTable(100), 0
    for turn in range(50):  # a key of each hundred stays
        keys = [key(100 * turn + number) for number in range(100)]
        for each in keys:
            table.add(each)
        for each in keys[1:]:
            table.remove(each)
        parts = max(parts, len(table._parts))
    assert len(table) == 50
    assert parts <= 3

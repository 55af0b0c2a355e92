"""Ids of rows: the same whatever their order, different for different rows, copies included."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.spark.frames import RowIds, scope_of

SCOPE = scope_of("job", "1", "0")


def ids(envelopes, options=b"\x90", scope=SCOPE):
    return RowIds(scope).of(options, envelopes)


@given(st.lists(st.binary(max_size=2), max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_rows_makes_no_difference(envelopes, random: Random):
    shuffled = random.sample(envelopes, len(envelopes))
    assert Counter(zip(ids(envelopes), envelopes, strict=True)) == Counter(zip(ids(shuffled), shuffled, strict=True))
    assert len(set(ids(envelopes))) == len(envelopes)


@given(st.lists(st.binary(max_size=2), max_size=20), st.integers(0, 20))
def test_where_batches_end_makes_no_difference(envelopes, cut):
    in_two = RowIds(SCOPE)
    assert in_two.of(b"\x90", envelopes[:cut]) + in_two.of([b"\x90"] * len(envelopes[cut:]), envelopes[cut:]) == ids(
        envelopes
    )


def test_a_part_of_the_rows_has_the_ids_that_it_has_in_the_whole():
    envelopes = [b"a", b"b", b"a", b"c", b"a"]
    assert set(ids([b"a", b"c", b"a"])) < set(ids(envelopes))


def test_options_and_scope_distinguish_rows():
    assert len(set(RowIds(SCOPE).of([b"\x91\x01", b"\x91\x02"], [b"a", b"a"]))) == 2
    assert ids([b"a"]) != ids([b"a"], options=b"\x91\x01")
    assert ids([b"a"]) != ids([b"a"], scope=scope_of("job", "1", "1"))


def test_a_copy_is_no_row_that_looks_like_it():
    """The second ``a`` must not be taken for a row whose content is ``a`` and a number."""
    assert len(set(ids([b"a", b"a", b"a" + (1).to_bytes(8, "big"), b"a" + (2).to_bytes(8, "big")]))) == 4


@pytest.mark.parametrize("other", [("job", "12", "0"), ("job", "1", "20"), ("query", "1", "0"), ("job", "1")])
def test_scopes_differ(other):
    assert scope_of(*other) != scope_of("job", "1", "2")


def test_an_id_is_short_and_plain():
    (one,) = ids([b"x" * 5000])
    assert len(one) == 32
    assert int(one, 16) >= 0

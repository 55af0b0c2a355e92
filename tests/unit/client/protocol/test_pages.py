"""Pages of deliveries, as an honest or a hostile server sends them: what is decoded when it is read is what is decoded at once."""

import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.settling import ACK, Settlement, runs_of
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import DELIVERY, Delivered, LeaseBatch, Settle, Verb
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import (
    FIXED_BYTES,
    Extension,
    Record,
    headers_length,
    open_envelope,
    pack_record,
    seal_envelope,
    unpack_record,
)
from tests.unit.client.peer import BORN_MS, Peer, batch, give_up

numbers = st.integers(0, (1 << 31) - 1)
extensions = st.just(Extension()) | st.builds(
    Extension,
    error=st.text(max_size=6),
    metadata=st.binary(max_size=6),
    source_queue=st.none() | st.text(max_size=4),
    cost_milli=st.integers(1, 5000),
    max_attempts=st.none() | st.integers(1, 9),
)
envelopes = st.builds(
    seal_envelope, st.binary(max_size=40), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
)
good = st.builds(Record, numbers, numbers, st.integers(0, 1 << 63), st.integers(0, 1 << 63), extensions, envelopes).map(
    pack_record
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A record that was cut, or has other bytes somewhere."""
    data = bytearray(draw(good))
    if draw(st.booleans()):
        return bytes(data[: draw(st.integers(0, len(data)))])
    for position in draw(st.lists(st.integers(0, len(data) - 1), max_size=3)):
        data[position] = draw(st.integers(0, 255))
    return bytes(data)


records = good | damaged() | st.binary(max_size=60)


def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.lists(values, max_size=4)


pages = st.lists(
    st.builds(
        LeaseBatch,
        st.integers(0, 1 << 62),
        st.just(BORN_MS),
        st.integers(BORN_MS - 5, BORN_MS + 60_000),
        column(st.text(max_size=3)),
        column(numbers),
        st.lists(good, max_size=4) | st.lists(records, max_size=4),
        st.lists(st.lists(st.text(max_size=3), max_size=2), max_size=4),
        st.booleans(),
    ),
    max_size=3,
)


def eagerly(part: Callable[[], Any]) -> Any:
    """The value of a part of a record, or the kind of its error."""
    try:
        return part()
    except InvalidFrameError as error:
        return type(error)


def fits(batch: LeaseBatch) -> bool:
    """Whether each delivery of a batch can be named and scheduled; its content may be damaged."""
    size = len(batch.records)
    whole = all(len(record) >= FIXED_BYTES for record in batch.records)
    columns = all(not isinstance(each, list) or len(each) == size for each in (batch.fairness_key, batch.weight))
    return whole and columns and len(batch.throttle_keys) in {0, 1, size}


def envelope_of(data: bytes) -> bytes:
    """The envelope in a record, found step by step."""
    if data[0] != 1:
        raise InvalidFrameError("another layout")
    return data[30 + int.from_bytes(data[26:30], "big") :] if data[1] & 1 else data[26:]


def payload_in(envelope: bytes) -> bytes:
    return envelope[4 + headers_length(envelope) :]


def decoded(batch: LeaseBatch, index: int) -> dict[str, Any]:
    """All that a delivery says, decoded at once by the general code."""
    data = batch.records[index]
    extension = eagerly(lambda: Extension() if data[:2] == b"\x01\x00" else unpack_record(data).extension)
    keys = batch.throttle_keys
    return {
        "id": format_id(int.from_bytes(data[10:18], "big"), int.from_bytes(data[18:26], "big")),
        "attempts": int.from_bytes(data[2:6], "big"),
        "priority": int.from_bytes(data[6:10], "big", signed=True),
        "payload": eagerly(lambda: payload_in(envelope_of(data))),
        "headers": eagerly(lambda: open_envelope(envelope_of(data))[0]),
        "fairness_key": batch.fairness_key[index] if isinstance(batch.fairness_key, list) else batch.fairness_key,
        "weight": batch.weight[index] if isinstance(batch.weight, list) else batch.weight,
        "throttle_keys": keys[index if len(keys) > 1 else 0] if keys else [],
        **{name: getattr(extension, name, extension) for name in ("error", "metadata", "source_queue", "max_attempts")},
    }


def check(deliveries: Sequence[Delivery], page: list[LeaseBatch], random: Random) -> None:
    """Read everything that deliveries say, in any order, twice."""
    give_up(*deliveries)
    expected = [decoded(batch, index) for batch in page for index in range(len(batch.records))]
    assert len(deliveries) == len(expected)
    reads = [(got, name, value) for got, said in zip(deliveries, expected, strict=True) for name, value in said.items()] * 2
    random.shuffle(reads)
    for got, name, value in reads:
        assert eagerly(lambda got=got, name=name: getattr(got, name)) == value, (name, got._packed)  # type: ignore[misc]


def numbered(page: list[LeaseBatch]) -> list[LeaseBatch]:
    """The same with a number for each lease; 0 says that there is nothing to settle."""
    return [structs.replace(batch, lease=bool(batch.lease) * (index + 1)) for index, batch in enumerate(page)]


@given(pages.map(numbered), st.randoms(use_true_random=False))
def test_a_pushed_page_says_what_it_says_decoded_at_once_or_is_refused_as_a_whole(page: list[LeaseBatch], random: Random):
    peer = Peer()
    subscription = peer.session.subscribe("q", 100, peer.now, auto_extend=True)
    peer.push("q", subscription.id, *page)
    if all(map(fits, page)):
        check(list(subscription.ready), page, random)
    else:
        assert not subscription.ready
        assert not subscription.leases
    peer.push("q", subscription.id, batch(99))
    got = subscription.ready.pop()
    assert got.payload == b"x"
    give_up(got)


@given(pages.map(numbered), st.randoms(use_true_random=False))
def test_an_answered_page_says_what_it_says_decoded_at_once_or_is_an_error(page: list[LeaseBatch], random: Random):
    peer = Peer()
    if all(map(fits, page)):
        check(peer.receive("q", *page), page, random)
    else:
        with pytest.raises(InvalidFrameError, match=r"record of less|column of"):
            peer.receive("q", *page)
    (got,) = peer.receive("q", batch(99))
    give_up(got)


@given(pages.map(numbered), st.integers(0), st.integers(0, 255), st.booleans())
def test_a_page_with_another_byte_somewhere_ends_nothing(page: list[LeaseBatch], at: int, byte: int, cut: bool):
    peer = Peer()
    subscription = peer.session.subscribe("q", 100, peer.now, auto_extend=True)
    body = bytearray(encode_body(Delivered(subscription.id, page)))
    body[at % len(body)] = byte
    data = bytes(body[: at % len(body)] if cut else body)
    peer.session.arrived((pack_header(DELIVERY), b"q", memoryview(data)), peer.now)
    for got in subscription.ready:
        eagerly(lambda got=got: (repr(got), got.fairness_key, got.weight, got.throttle_keys))  # type: ignore[misc]
        eagerly(lambda got=got: got.payload)  # type: ignore[misc]
    give_up(*subscription.ready)
    peer.sent()
    (got,) = peer.receive("q", batch(1 << 50))
    give_up(got)


def test_a_page_is_let_go_with_its_frame() -> None:
    peer = Peer()
    subscription = peer.session.subscribe("q", 100, peer.now, auto_extend=True)
    body = encode_body(Delivered(subscription.id, [batch(1, 3, payload=bytes(100_000))]))
    references = sys.getrefcount(body)
    peer.session.arrived((pack_header(DELIVERY), b"q", memoryview(body)), peer.now)
    assert sys.getrefcount(body) == references
    first, *others = subscription.ready
    subscription.ready.clear()
    give_up(first, *others)
    lost = [sys.getrefcount(each._packed) for each in others]
    assert lost == [2, 2], "nothing but its delivery keeps a record"
    assert first._lease.terms.records == []


# --- settled by runs ----------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    skipped=st.integers(0, 4),
    left=st.integers(0, 3),
    alone=st.sets(st.integers(0, 20), max_size=3),
    priced=st.sets(st.integers(0, 20), max_size=2),
    once=st.booleans(),
    disorder=st.sampled_from(["", "", "reversed", "twice"]),
    verb=st.sampled_from([Verb.ACK, Verb.FAIL]),
)
def test_runs_are_settled_as_deliveries_are(
    sizes: list[int],
    skipped: int,
    left: int,
    alone: set[int],
    priced: set[int],
    once: bool,
    disorder: str,
    verb: Verb,
):
    def settled(by_runs: bool) -> Any:
        peer = Peer()
        subscription = peer.session.subscribe("q", 100, peer.now, auto_extend=True)
        peer.push("q", subscription.id, *(batch(n + 1, size, at_most_once=once and n == 1) for n, size in enumerate(sizes)))
        every = list(subscription.ready)
        subscription.ready.clear()
        taken = every[skipped : len(every) - left]
        if disorder:
            taken = taken[::-1] if disorder == "reversed" else taken + taken[:1]
        for position, got in enumerate(taken):
            if position in priced:
                got.actual_cost = 2.5
        peer.sent()
        peer.session.settle([got for position, got in enumerate(taken) if position in alone], ACK)
        settling = peer.session.settle(taken, Settlement(verb), runs_of(taken) if by_runs else ())
        again = peer.session.settle(taken, Settlement(verb), runs_of(taken) if by_runs else ())
        sent = [frame.command for frame in peer.sent(Settle)]
        states = [(got._settled, got._lease.unsettled) for got in every]
        give_up(*every)
        errors = [{at: (type(error), str(error)) for at, error in each.errors.items()} for each in (settling, again)]
        return [*map(encode_body, sent)], states, errors, settling.done

    assert settled(True) == settled(False)

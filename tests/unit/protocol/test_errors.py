"""Errors: one class per code, the same on both sides of the wire and of a pickle."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq import errors
from fila_proto_zmq.codec import decode_body, encode_body, from_fault, to_fault
from fila_proto_zmq.commands import Fault
from fila_proto_zmq.errors import BY_CODE, BatchError, FilaError, InvalidArgumentError, OverloadedError

each_kind = pytest.mark.parametrize("kind", BY_CODE.values(), ids=list(BY_CODE))


def same(one: FilaError, other: FilaError) -> bool:
    facts = [(type(each), str(each), each.message, each.retry_after, each.details) for each in (one, other)]
    return facts[0] == facts[1]


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FilaError)}
    assert set(BY_CODE.values()) == kinds
    assert all(BY_CODE[kind.code] is kind for kind in kinds)


def test_which_errors_may_be_retried() -> None:
    retryable = {code for code, kind in BY_CODE.items() if kind.retryable}
    assert retryable == {"SHARD_UNAVAILABLE", "REQUEST_TIMEOUT", "OVERLOADED", "RATE_LIMITED"}


def test_an_invalid_argument_is_a_value_error() -> None:
    assert issubclass(InvalidArgumentError, ValueError)


@each_kind
def test_errors_cross_the_wire(kind: type[FilaError]) -> None:
    error = kind("what was wrong", retry_after=1.5, details={"limit": 7, "names": ["a"]})
    fault = decode_body(Fault, encode_body(to_fault(error)))
    assert same(from_fault(fault), error)


@each_kind
@pytest.mark.parametrize("clone", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_errors_can_be_pickled_and_copied(kind: type[FilaError], clone: object) -> None:
    error = kind("what was wrong", retry_after=1.5, details={"limit": 7})
    assert same(clone(error), error)  # type: ignore[operator]


def test_a_pickled_batch_error_keeps_its_results() -> None:
    error = BatchError("1 of 2 failed", ["id", OverloadedError("busy", retry_after=0.5)])
    results = pickle.loads(pickle.dumps(error)).results
    assert results[0] == "id"
    assert same(results[1], error.results[1])


def test_a_code_of_a_later_version_is_named_in_a_plain_error() -> None:
    error = from_fault(Fault("QUOTA_EXHAUSTED", "too many", 500, {"quota": 5}))
    assert same(error, FilaError("QUOTA_EXHAUSTED: too many", retry_after=0.5, details={"quota": 5}))


@given(st.floats(0.0, 1e9))
def test_a_retry_delay_is_never_lost_in_rounding(retry_after: float) -> None:
    back = from_fault(to_fault(OverloadedError("busy", retry_after=retry_after)))
    assert back.retry_after == pytest.approx(retry_after, abs=0.001)


def test_details_are_the_errors_own() -> None:
    details = {"limit": 7}
    error = OverloadedError("busy", details=details)
    details.clear()
    assert error.details == {"limit": 7}

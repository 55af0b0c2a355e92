"""Which permission allows what, and which covers another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_admission.permissions import PERMISSIONS_MAX, NeededPermission, Permission, Permissions, kind_of, need_of
from fila_admission.requests import OF_A_QUEUE
from fila_proto_zmq.commands import (
    COMMANDS,
    DescribeQueue,
    Explain,
    GetClusterStatus,
    GetHosts,
    GetOwnKey,
    GetPlacement,
    GetQueueStats,
    ListQueues,
    ListSchedules,
)
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.names import matches

NAMES = st.text("ab/.", max_size=4)
PATTERNS = st.builds(lambda name, star: name + star, NAMES, st.sampled_from(["", "*"])).filter(bool)


@given(PATTERNS, PATTERNS, st.text("ab/.", max_size=6))
def test_what_covers_a_pattern_allows_all_that_it_matches(outer: str, inner: str, name: str) -> None:
    if Permission("admin", outer).covers(inner) and matches(inner, name):
        assert matches(outer, name)


@given(PATTERNS, PATTERNS)
def test_what_does_not_cover_a_pattern_leaves_a_name_out(outer: str, inner: str) -> None:
    if not Permission("admin", outer).covers(inner):
        within = [inner] if not inner.endswith("*") else [inner[:-1] + rest for rest in ("", "x", "y", "xy")]
        assert not all(matches(outer, name) for name in within)


def test_no_kind_implies_another_one() -> None:
    permissions = Permissions(["produce:a*", "consume:b", "admin:c*"])
    allowed = {
        kind: {name for name in ("a1", "b", "b1", "c1") if permissions.allow(kind, name)}
        for kind in ("produce", "consume", "admin")
    }
    assert allowed == {"produce": {"a1"}, "consume": {"b"}, "admin": {"c1"}}
    assert all(permissions.allow_some(kind) for kind in allowed)
    assert [kind for kind in allowed if Permissions(["consume:b", "consume:c*"]).allow_some(kind)] == ["consume"]
    assert [name for name in ("a", "b", "b.dlq", "c.dlq", "d") if permissions.know(name)] == ["a", "b", "c.dlq"]
    assert permissions.patterns == ["a*", "b", "c*"]
    assert not permissions.know_all()
    assert permissions.govern_all(["produce:c", "consume:c1*"])
    assert not permissions.govern_all(["produce:c", "consume:b"])


def test_what_is_allowed_on_a_queue_is_allowed_on_its_partitions() -> None:
    permissions = Permissions(["produce:orders", "consume:pay*"])
    for name in "orders@0", "orders@255":
        assert permissions.allow("produce", name)
        assert permissions.know(name)
        assert not permissions.allow("consume", name)
    assert permissions.allow("consume", "payments@3")
    assert not any(permissions.know(name) for name in ("order@1", "orders2@1", "orders.dlq@1", "@orders"))


def test_every_request_for_a_queue_has_a_kind_but_questions_about_it() -> None:
    without = {each for each in COMMANDS if pack_header(each.opcode)[:6] in OF_A_QUEUE and kind_of(each.opcode) is None}
    assert without == {GetQueueStats, DescribeQueue, Explain}


def test_what_is_not_listed_needs_a_permission_for_everything() -> None:
    assert need_of(29) is NeededPermission.GOVERN_ALL  # an opcode that a later version may have
    assert {each for each in COMMANDS if need_of(each.opcode) is NeededPermission.NOTHING} == {
        GetPlacement,
        GetClusterStatus,
        GetHosts,
        GetOwnKey,
        ListQueues,
        ListSchedules,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "produce",
        "produce:",
        ":a",
        "own:a",
        "produce:a*b",
        "produce:**",
        "produce:a/b/c",
        "produce:é",
        "admin:" + "a" * 201,
    ],
)
def test_what_is_no_permission_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="permission"):
        Permissions([text])


def test_a_key_has_few_permissions() -> None:
    Permissions(f"produce:q{number}" for number in range(PERMISSIONS_MAX))
    with pytest.raises(InvalidArgumentError, match="use patterns"):
        Permissions(f"produce:q{number}" for number in range(PERMISSIONS_MAX + 1))

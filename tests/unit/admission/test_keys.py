"""API keys: found by their secrets, ended in time or by somebody, copied to other processes."""

from random import Random

import pytest

from fila_admission.keys import ALGORITHM, SECRET_PREFIX, KeyRing, digest_of, make_secret
from fila_admission.permissions import pattern_of
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    ApiKey,
    CreateQueue,
    DeleteTemplate,
    Enqueue,
    GetMetrics,
    GetTemplate,
    ListKeys,
    ListTemplates,
    PutTemplate,
    QueueOptions,
    SetConfig,
    UpdateQueue,
)
from fila_proto_zmq.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError


def record(name: str, *allow: str, expires_ms: int = 0) -> ApiKey:
    return ApiKey(name, ALGORITHM, digest_of(f"fila_{name}"), list(allow), 1, expires_ms)


def test_secrets_have_256_bits_and_can_be_recognised() -> None:
    secrets = {make_secret(Random(seed).randbytes) for seed in range(100)}
    assert len(secrets) == 100
    assert all(secret.startswith(SECRET_PREFIX) and len(secret) == len(SECRET_PREFIX) + 43 for secret in secrets)
    assert make_secret(bytes) == SECRET_PREFIX + "A" * 43


def test_a_key_is_found_by_its_secret_until_it_ends() -> None:
    ring = KeyRing([record("a"), record("b", expires_ms=1000)])
    assert ring.find("fila_a", 5000).name == "a"
    key = ring.find("fila_b", 999)
    for secret, cause in (("", "needs an API key"), ("fila_c", "not one of this cluster"), ("fila_b", "'b' has expired")):
        with pytest.raises(UnauthenticatedError, match=cause):
            ring.find(secret, 1000)
    assert key.ended
    a = ring.find("fila_a", 1000)
    ring.remove("a")
    with pytest.raises(UnauthenticatedError, match="'a' was revoked"):
        a.check(Enqueue.opcode, "q", b"", 1000)
    with pytest.raises(UnauthenticatedError, match="not one of this cluster"):
        ring.find("fila_a", 1000)
    ring.check()


def test_names_are_unique() -> None:
    ring = KeyRing([record("a")])
    with pytest.raises(InvalidArgumentError, match="already"):
        ring.add(record("a"))
    ring.check()


def test_a_copy_follows_and_objects_stay() -> None:
    ring = KeyRing([record("a", "produce:x"), record("b")])
    a, b = ring.get("a"), ring.get("b")
    assert a
    assert b
    ring.replace([record("a", "produce:x", "consume:y"), record("c")])
    ring.check()
    assert ring.get("a") is a
    assert a.permissions.allow("consume", "y")
    assert b.ended
    assert ring.get("b") is None
    assert {key.name for key in ring} == {"a", "c"}


def test_requests_are_checked_before_anything_is_looked_up() -> None:
    (key,) = KeyRing([record("shop", "produce:shop*", "admin:shop")])
    key.check(Enqueue.opcode, "shop.eu", b"", 0)
    with pytest.raises(PermissionDeniedError, match="does not have produce:other"):
        key.check(Enqueue.opcode, "other", b"", 0)
    with pytest.raises(PermissionDeniedError, match=r"produce:other$"):
        key.check(Enqueue.opcode, "other@3", b"", 0)
    key.check(CreateQueue.opcode, "shop", encode_body(CreateQueue(QueueOptions(dead_letter="discard"))), 0)
    for body in (
        CreateQueue(QueueOptions(dead_letter="other")),
        UpdateQueue(QueueOptions(dead_letter="other"), ["dead_letter"]),
    ):
        with pytest.raises(PermissionDeniedError, match="admin:other, for the dead letters of 'shop'"):
            key.check(body.opcode, "shop", memoryview(encode_body(body)), 0)
    with pytest.raises(PermissionDeniedError, match="admin:other, for the dead letters"):
        key.check(PutTemplate.opcode, "shop", encode_body(PutTemplate("shop", QueueOptions(dead_letter="other"))), 0)
    for opcode in (SetConfig.opcode, GetMetrics.opcode):
        with pytest.raises(PermissionDeniedError):
            key.check(opcode, "", b"", 0)
    key.check(ListKeys.opcode, "", b"", 0)


@pytest.mark.parametrize(
    ("allow", "pattern", "may_put", "may_get"),
    [
        ("admin:tenant-*", "tenant-*", True, True),
        ("admin:tenant-*", "tenant-eu-*", True, True),
        ("admin:tenant-*", "tenant-eu", True, True),
        ("admin:tenant-eu-*", "tenant-*", False, False),
        ("admin:tenant-", "tenant-*", False, False),
        ("admin:*", "*", True, True),
        ("admin:a*", "*", False, False),
        ("produce:tenant-*", "tenant-*", False, True),
        ("consume:t*", "tenant-*", False, True),
    ],
)
def test_a_template_needs_a_permission_that_covers_its_pattern(
    allow: str, pattern: str, may_put: bool, may_get: bool
) -> None:
    (key,) = KeyRing([record("k", allow)])
    asked = [
        (PutTemplate(pattern, QueueOptions()), may_put),
        (DeleteTemplate(pattern), may_put),
        (GetTemplate(pattern), may_get),
    ]
    for command, may in asked:
        assert pattern_of(command) == pattern
        try:
            key.check(command.opcode, pattern_of(command), encode_body(command), 0)
        except PermissionDeniedError:
            assert not may, command
        else:
            assert may, command
    with pytest.raises(PermissionDeniedError):
        KeyRing([record("k", "admin:t*")]).find("fila_k", 0).check(ListTemplates.opcode, "", b"", 0)

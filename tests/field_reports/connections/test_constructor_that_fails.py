"""A client whose arguments are refused leaves nothing that fails later, when it is garbage-collected.

Source: redis/redis-py issue 2660
Right: the constructor raises one error, and nothing is reported as unraisable
"""

import gc
import sys
from typing import Any

import pytest

from fila_cluster import AsyncClient, Client
from fila_cluster.errors import InvalidArgumentError

BAD: list[dict[str, Any]] = [
    *[{"endpoint": text} for text in ("nonsense", "", "tcp://", "tcp://:5", "tcp://host:99999999", "http://x:1", "tcp://a:1,,tcp://b:2", "tcp://[::1")],
    {"timeout": -1},
    {"timeout": "soon"},
    {"server_key": "no key"},
    {"direct": "perhaps"},
]  # fmt: skip


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("arguments", BAD, ids=str)
def test_one_error_and_nothing_later(kind: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(InvalidArgumentError):
        kind(**arguments)
    gc.collect()
    assert unraisable == []

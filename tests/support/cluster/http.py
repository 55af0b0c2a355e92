"""Requests to the HTTP door of a cluster, as a program makes them."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.cluster.cluster import PATIENCE_S, Cluster

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


def address(cluster: Cluster) -> str:
    """The URL of a cluster's dashboard, and of its door."""
    return cluster.ready_line.split("dashboard ")[1].split(" ")[0]


def ask(url: str, path: str, body: Any, headers: Mapping[str, str] = JSON, *, key: str = "", method: str = "POST") -> Answer:
    """Make a request. A body that is no bytes is sent as JSON. ``key``: an API key."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, content, {**headers, **authorization})
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.headers.get("content-type") == "application/json"
        return Answer(answer.status, dict(answer.headers.items()), json.loads(text) if is_json else text.decode())
    finally:
        connection.close()


def answers(cluster: Cluster) -> bool:
    """Whether its observer serves. On a busy machine that is later than the cluster."""
    try:
        return ask(address(cluster), "/healthz", b"", method="GET").status == 200
    except OSError:
        return False

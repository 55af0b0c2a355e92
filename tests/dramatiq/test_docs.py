"""The blocks of docs/dramatiq.md run as they stand there."""

import re
from pathlib import Path
from typing import Any

import dramatiq.broker
import pytest

from fila_cluster.dramatiq import FilaBroker
from tests.support.cluster.cluster import Cluster

PAGE = Path(__file__).parents[2] / "docs/dramatiq.md"


def test_the_blocks_of_the_page(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dramatiq.broker, "global_broker", None)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "page"}
    source = "\n".join(blocks).replace("tcp://127.0.0.1:5555", shared_cluster.endpoint)
    try:
        exec(compile(source.replace("FilaBroker(", "FilaBroker(namespace='page', endpoint="), str(PAGE), "exec"), names)
        broker: FilaBroker = names["broker"]
        found = broker.client.browse("page/default")
        assert {(message.fairness_key, message.state, tuple(message.throttle_keys), message.cost) for message in found} == {
            ("default", "pending", (), 1),
            ("default", "delayed", (), 1),
            ("acme", "pending", ("mail-provider",), 1),
            ("trial", "pending", ("mail-provider",), 2),
        }
    finally:
        names["broker"].client.delete_config("throttle.mail-provider")
        names["broker"].close()

"""The metrics of handlers."""

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from fila_cluster.app import App, Fail
from fila_cluster.app.telemetry import instruments_of
from tests.support.cluster.handled import Desk, FakeAsyncClient, FakeClient


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """What the instruments have measured."""
    reader = InMemoryMetricReader()
    instruments = instruments_of(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    monkeypatch.setattr("fila_cluster.app.work.instruments", lambda: instruments)
    monkeypatch.setattr("fila_cluster.app.serving.instruments", lambda: instruments)
    return reader


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """The values by metric: of a histogram, how many there are."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [(dict(point.attributes), getattr(point, "value", None) or getattr(point, "count", 0)) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }  # fmt: skip


def test_deliveries_are_counted_by_outcome(reader: InMemoryMetricReader) -> None:
    app, desk = App(), Desk()

    @app.handler("orders")
    def order(payload: bytes) -> None:
        if payload == b"bad":
            raise Fail("no")

    desk.put("orders", b"a", b"b", b"bad")
    app.run_until_idle(FakeClient(desk))  # type: ignore[arg-type]
    about = {"queue": "orders", "handler": app.handlers[0].name}
    acked, failed = about | {"outcome": "ack"}, about | {"outcome": "fail"}
    found = measured(reader)
    assert found["fila.handler.messages"] == [(acked, 2), (failed, 1)]
    assert found["fila.handler.duration"] == [(acked, 2), (failed, 1)]
    assert found["fila.handler.in_hand"] == [(about, 0)]


def test_calls_over_their_limit_are_counted_while_they_go_on(reader: InMemoryMetricReader) -> None:
    app, desk, may_end = App(), Desk(), threading.Event()

    @app.handler("orders", timeout=0.01)
    def order(payload: bytes) -> None:
        may_end.wait(60)

    desk.put("orders", b"a")

    async def test() -> list[list[tuple[dict[str, Any], float]]]:
        working = asyncio.create_task(app.work(client=FakeAsyncClient(desk), end_when_stuck=False))  # type: ignore[arg-type]
        found = []
        for overdue in (1, 0):
            while app.handlers[0].tally.overdue != overdue or not desk.settled:
                await asyncio.sleep(0.001)
            found.append(measured(reader)["fila.handler.overdue"])
            desk.queues["orders"].clear()
            may_end.set()
        working.cancel()
        return found

    about = {"queue": "orders", "handler": app.handlers[0].name}
    assert asyncio.run(test()) == [[(about, 1)], [(about, 0)]]

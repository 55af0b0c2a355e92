"""What the broker is told of one of kombu's messages."""

import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fila_cluster.celery.envelope import OutgoingMessage, Waited, outgoing
from fila_proto_zmq.errors import InvalidArgumentError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def message(headers: dict[str, Any] | None = None, priority: int | None = None, **properties: Any) -> OutgoingMessage:
    return outgoing(b"[]", priority, "application/json", "utf-8", headers, properties)


def test_a_message_without_wishes_has_only_an_id_for_its_repetitions() -> None:
    options = message().options(NOW)
    assert options.keys() == {"priority", "dedup_id"}
    assert options["priority"] == 0


def test_all_attempts_of_one_publish_have_one_id_and_others_another() -> None:
    properties: dict[str, Any] = {}
    first = outgoing(b"", None, None, None, None, properties).options(NOW)["dedup_id"]
    assert outgoing(b"", None, None, None, None, properties).options(NOW)["dedup_id"] == first
    assert outgoing(b"", None, None, None, None, {}).options(NOW)["dedup_id"] != first


def test_properties_that_amqp_does_not_know_stay_in_the_process() -> None:
    assert json.loads(message(reply_to="q", signal=object()).sealed("", "celery")["celery"])["properties"] == {
        "reply_to": "q"
    }


def test_headers_of_a_task_that_has_waited_show_its_eta_to_the_task_only() -> None:
    waited = Waited({"eta": "2026-01-01T00:00:00", "id": "1"})
    for headers in (waited, waited.copy()):
        assert (headers.get("eta"), headers.get("id"), headers.get("none", 2)) == (None, "1", 2)
    assert type(pickle.loads(pickle.dumps(waited.copy()))) is dict
    assert pickle.loads(pickle.dumps(waited.copy())) == {"eta": "2026-01-01T00:00:00", "id": "1"}


def test_the_id_of_a_publish_is_not_sent_to_consumers() -> None:
    said = json.loads(message(correlation_id="7").sealed("", "celery")["celery"])
    assert said["properties"] == {"correlation_id": "7"}


@pytest.mark.parametrize(("celerys", "ours"), [(None, 0), (0, 0), (9, -9), (-3, 0), (1000, -255)])
def test_a_higher_priority_of_celery_comes_first(celerys: int | None, ours: int) -> None:
    assert message(priority=celerys).options(NOW)["priority"] == ours


def test_an_eta_is_the_brokers_delay() -> None:
    due = NOW + timedelta(hours=1)
    assert message({"eta": due.isoformat()}).options(NOW)["delay"] == 3600
    naive = due.replace(tzinfo=None)
    assert message({"eta": naive.isoformat()}).options(NOW)["delay"] == 3600


@pytest.mark.parametrize("eta", [None, "soon", 12, "2001-01-01T00:00:00+00:00"])
def test_an_eta_that_is_past_or_none_is_no_delay(eta: object) -> None:
    assert "delay" not in message({"eta": eta}).options(NOW)


@pytest.mark.parametrize(("expiration", "ttl"), [("1500", 1.5), ("0", 0.001)])
def test_an_expiration_is_a_time_to_live(expiration: str, ttl: float) -> None:
    assert message(expiration=expiration).options(NOW)["ttl"] == ttl


def test_headers_name_the_tenant() -> None:
    options = message(
        {"fila-fairness-key": "acme", "fila-weight": "3", "fila-throttle-keys": "mail, acme", "fila-cost": "0.5"}
    ).options(NOW)
    assert (options["fairness_key"], options["weight"], options["cost"]) == ("acme", 3, 0.5)
    assert options["throttle_keys"] == ["mail", "acme"]
    assert message({"fila-throttle-keys": ("a", "b")}).options(NOW)["throttle_keys"] == ["a", "b"]


def test_a_weight_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="the header fila-weight is 'heavy': it must be a number"):
        message({"fila-weight": "heavy"}).options(NOW)


def test_hooks_see_the_task_and_the_texts_that_a_producer_added() -> None:
    headers = message({"task": "shop.pay", "id": "1", "lang": "py", "tenant": "acme", "size": 3, "long": "x" * 2000}).sealed(
        "shop", "pay"
    )
    assert headers.keys() == {"celery", "task", "id", "tenant"}
    said = json.loads(headers["celery"])
    assert (said["exchange"], said["routing_key"], said["headers"]["lang"]) == ("shop", "pay", "py")


def test_a_text_body_is_encoded_as_it_says() -> None:
    assert outgoing("é", None, "text/plain", "latin-1", None, {}).body == b"\xe9"
    assert outgoing("é", None, "text/plain", None, None, {}).body == "é".encode()

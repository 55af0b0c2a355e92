"""Headers, fairness keys, dedup ids and errors in any script come back as they were given.

Source: pika/pika issue 34, celery/librabbitmq issue 132, gmr/rabbitpy issue 49
Right: equal text, whatever the payload is; a queue's name that is not plain is refused with its value
"""

import pytest

from fila_cluster import Client
from fila_cluster.errors import InvalidArgumentError

TEXT = "ö ё 漢字 🦊\u0000\u200f\u2028 ﬁ e\u0301"


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", TEXT.encode()])
def test_text_is_kept(client: Client, queue: str, payload: bytes) -> None:
    first = client.enqueue(queue, payload, {TEXT: TEXT, "": ""}, fairness_key=TEXT, throttle_keys=[TEXT], dedup_id=TEXT)
    assert client.enqueue(queue, b"again", dedup_id=TEXT) == first
    (delivery,) = client.receive(queue)
    assert (delivery.payload, delivery.headers, delivery.fairness_key) == (payload, {TEXT: TEXT, "": ""}, TEXT)
    assert list(delivery.throttle_keys) == [TEXT]
    delivery.nack(TEXT)
    (view,) = client.browse(queue, fairness_key=TEXT)
    assert view.error == TEXT
    assert client.purge_queue(queue, fairness_key=TEXT) == 1


@pytest.mark.parametrize("name", ["ö", "a b", "漢字", "a\u0000b", "a/b/c", ".", "..", "x" * 201])
def test_a_queue_has_a_plain_name(client: Client, name: str) -> None:
    if name in {".", ".."}:  # letters that a name may have
        client.create_queue(name)
        client.delete_queue(name)
        return
    with pytest.raises(InvalidArgumentError):
        client.create_queue(name)

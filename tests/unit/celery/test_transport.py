"""Where a URL of kombu's leads."""

import pytest
from celery.exceptions import ImproperlyConfigured
from kombu import Connection

import fila_cluster.celery  # noqa: F401  # registers fila://
from fila_cluster.celery.transport import _endpoint


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("fila://", None),
        ("fila:///shop", None),
        ("fila://broker", "tcp://broker:5555"),
        ("fila://:key@broker:5556/shop", "tcp://broker:5556"),
        ("fila://:5556", "tcp://127.0.0.1:5556"),
        ("fila://[::1]", "tcp://[::1]:5555"),
        ("fila://a;fila://b:5556;fila://a", "tcp://a:5555,tcp://b:5556"),
    ],
)
def test_a_url_without_a_host_leaves_it_to_the_environment(url: str, endpoint: str | None) -> None:
    connection = Connection(url)
    assert _endpoint(connection) == endpoint
    assert _endpoint(connection.clone()) == endpoint


def test_tls_that_there_is_not_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="server_key"), Connection("fila://broker", ssl=True) as connection:
        connection.connect()

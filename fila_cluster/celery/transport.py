"""The transport that kombu finds under ``fila://``."""

from typing import Any
from urllib.parse import urlsplit

from amqp.exceptions import ChannelError
from celery.exceptions import ImproperlyConfigured
from kombu.transport import base
from kombu.utils.compat import detect_environment

from fila_cluster.celery.channel import Channel
from fila_cluster.celery.connection import CeleryConnection
from fila_proto_zmq.errors import (
    OverloadedError,
    QueueNotFoundError,
    RateLimitedError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.version import VERSION

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 5555
TIMEOUT_S_MIN = 5.0
"""A call survives a restart of the broker's processes in that time. kombu tries again after it."""

OPTIONS = frozenset({"api_key", "server_key", "visibility_timeout", "max_attempts"})
_OF_KOMBU = frozenset(
    {"max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout", "errback", "callback"}
)
"""Options that kombu and Celery read for themselves, with any transport."""


class Transport(base.Transport):  # type: ignore[misc]  # kombu has no types
    """fila-cluster as a broker of kombu and Celery."""

    default_port = DEFAULT_PORT
    driver_type = "fila"
    driver_name = "fila-cluster"
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )
    recoverable_connection_errors = (
        ShardUnavailableError,
        RequestTimeoutError,
        OverloadedError,
        RateLimitedError,
        ConnectionError,
    )
    connection_errors = recoverable_connection_errors
    recoverable_channel_errors = (QueueNotFoundError,)
    channel_errors = (*recoverable_channel_errors, ChannelError)

    def driver_version(self) -> str:
        """Return the version of this library."""
        return VERSION

    def establish_connection(self) -> CeleryConnection:
        """Connect, and wait for one answer of the broker."""
        _check_environment()
        info = self.client
        options = dict(info.transport_options or {})
        unknown = options.keys() - OPTIONS - _OF_KOMBU
        if unknown:
            raise ImproperlyConfigured(
                f"broker_transport_options has {', '.join(sorted(map(str, unknown)))}: fila:// takes "
                f"{', '.join(sorted(OPTIONS))}"
            )
        if info.ssl:
            raise ImproperlyConfigured(
                "broker_use_ssl is set: fila:// has no TLS; connections are encrypted if broker_transport_options names the "
                "server_key"
            )
        queue_options = {
            name: options[name] for name in ("visibility_timeout", "max_attempts") if options.get(name) is not None
        }
        return CeleryConnection(
            info,
            _endpoint(info),
            (info.virtual_host or "").strip("/"),
            queue_options,
            api_key=options.get("api_key") or info.password or None,
            server_key=options.get("server_key"),
            timeout_s=max(TIMEOUT_S_MIN, info.connect_timeout or 0),
        )

    def close_connection(self, connection: CeleryConnection) -> None:
        """Disconnect."""
        connection.close()

    def _collect(self, connection: CeleryConnection | None) -> None:
        """Drop a connection that is broken, or is the parent's."""
        if connection is not None:
            connection.close()

    def create_channel(self, connection: CeleryConnection) -> Channel:
        """Open a channel."""
        return connection.channel()

    def drain_events(self, connection: CeleryConnection, timeout: float | None = None, **_: Any) -> None:
        """Hand over messages; :class:`TimeoutError` if there are none in time."""
        connection.drain_events(timeout)

    def verify_connection(self, connection: CeleryConnection) -> bool:
        """Return whether a connection may be used. One that may not is closed: kombu forgets it, and makes another one."""
        if not connection.connected:
            connection.close()
        return connection.connected

    def register_with_event_loop(self, connection: CeleryConnection, loop: Any) -> None:
        """Register a connection with kombu's event loop, which hands over the messages."""
        connection.register(loop)

    def unregister_from_event_loop(self, connection: CeleryConnection, loop: Any) -> None:
        """Undo :meth:`register_with_event_loop`."""
        connection.unregister()


def _check_environment() -> None:
    if detect_environment() == "eventlet":
        raise ImproperlyConfigured("fila:// does not run under eventlet: use --pool prefork, threads, gevent or solo")


def _endpoint(info: Any) -> str | None:
    """Return the endpoints of kombu's URLs: the client itself fails over. None: FILA_ENDPOINT, or the default."""
    if not info.hostname and not info.port:
        return None
    others = [url for each in info.alt or () if (url := urlsplit(each)).scheme == "fila"]
    hosts = [(info.hostname or DEFAULT_HOST, info.port), *((url.hostname, url.port) for url in others)]
    named = [f"tcp://{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}" for host, port in hosts if host]
    return ",".join(dict.fromkeys(named))

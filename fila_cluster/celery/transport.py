"""The transport that kombu finds under ``fila://``, and its connections: each is a client of the broker, with channels.

In an event loop (prefork, threads and solo workers) the loop watches the client's descriptor. Elsewhere (gevent, scripts)
``drain_events`` waits. The client renews its leases in a thread of its own, so they survive a task that blocks a solo worker
for minutes, and a restart of the broker.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from amqp.exceptions import ChannelError
from celery.exceptions import ImproperlyConfigured
from kombu.transport import base
from kombu.utils.compat import detect_environment

from fila_cluster.celery.channel import Channel
from fila_cluster.celery.exchanges import Exchanges, Names
from fila_cluster.client.io import inside
from fila_cluster.client.polled import PolledClient
from fila_cluster.client.requests.endpoints import parse_endpoints
from fila_proto_zmq.commands import GetPlacement
from fila_proto_zmq.errors import (
    FilaError,
    OverloadedError,
    QueueNotFoundError,
    RateLimitedError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.version import VERSION


class CeleryConnection:
    """A connection. Its channels may be used by several threads, as far as kombu allows that."""

    def __init__(
        self,
        client: Any,
        endpoint: str | None,
        namespace: str,
        queue_options: dict[str, Any],
        *,
        api_key: str | None,
        server_key: str | None,
        timeout_s: float,
    ) -> None:
        """Connect. ``client``: kombu's own connection; ``queue_options``: those of the queues that are created."""
        self.client = client
        self.names = Names(namespace)
        self.queue_options = queue_options
        self.fila = PolledClient(endpoint, api_key=api_key, server_key=server_key, timeout=timeout_s)
        self._pid = os.getpid()
        self._inside = parse_endpoints(self.fila.endpoint)[0].inside
        self._broker = inside.find(self._inside)
        """The broker, if it runs in this process."""
        self._channels: list[Channel] = []
        self._ids = count(1)
        self._loop: Any = None
        self._collected = False
        """There are settlements for the loop to send."""
        try:
            self.fila.request(GetPlacement())
        except BaseException:
            self.fila.close()
            raise
        self.exchanges = Exchanges(self.fila, self.names)

    @property
    def connected(self) -> bool:
        """Whether it is usable: open, in the process that opened it, and with its broker there, if that runs here."""
        return self._is_open and inside.find(self._inside) is self._broker

    @property
    def channels(self) -> Sequence[Channel]:
        """The open channels."""
        return tuple(self._channels)

    def check(self) -> None:
        """Raise an error that kombu handles if it can't be used any more."""
        if not self.connected:
            raise ConnectionResetError("this connection is closed: its unsettled messages went back to their queues")

    def channel(self) -> Channel:
        """Open a channel."""
        channel = Channel(self, next(self._ids))
        self._channels.append(channel)
        return channel

    def remove(self, channel: Channel) -> None:
        """Note that a channel is closed."""
        with suppress(ValueError):
            self._channels.remove(channel)

    def drain_events(self, timeout: float | None = None) -> None:
        """Hand over messages; wait for one if necessary. :class:`TimeoutError` after ``timeout`` seconds without any."""
        self.check()
        if self._deliver():
            return
        self.fila.take_in()
        if self._deliver():
            return
        if timeout is None or timeout > 0:
            self.fila.wait(timeout)
            if self._deliver():
                return
        raise TimeoutError("no message has come in time")

    def register(self, loop: Any) -> None:
        """Register the connection with an event loop, which hands over the messages."""
        self._loop = loop
        loop.add_reader(self.fila.fileno(), self._on_readable)
        loop.on_tick.add(self._on_tick)

    def unregister(self) -> None:
        """Undo :meth:`register`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.on_tick.discard(self._on_tick)
            if self._is_open:
                loop.remove_reader(self.fila.fileno())

    def consuming(self) -> None:
        """Note that there is a new consumer: messages may have come before the loop looks."""
        if self._loop is not None:
            self.fila.call_again()

    def send_soon(self) -> None:
        """Send collected settlements: those of one tick of an event loop together, before the loop sleeps."""
        if self._loop is None:
            self.fila.push()
        else:
            self._collected = True

    def close(self) -> None:
        """Give back unsettled messages, and disconnect. In the child of a fork: leave that to the parent."""
        self.unregister()
        self.fila.close()
        self._channels.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._pid == os.getpid() and not self.fila.closed

    def _on_tick(self) -> None:
        if self._collected:
            self._collected = False
            with suppress(FilaError):  # closed meanwhile: it was sent then
                self.fila.push()

    def _on_readable(self) -> None:
        # One message of each consumer at a time: a solo worker runs the task in there, and its ack must not wait for others.
        self.fila.take_in()
        try:
            self._deliver()
        finally:
            self.fila.call_again()

    def _deliver(self) -> bool:
        """Hand over one message of each consumer; False if there was none."""
        delivered = False
        for channel in list(self._channels):
            delivered |= channel.deliver()
        return delivered


DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 5555
TIMEOUT_S_MIN = 5.0
"""A call survives a restart of the broker's processes in that time. kombu tries again after it."""

OF_QUEUES = ("visibility_timeout", "max_attempts", "partitions", "spread")
"""Options of the queues that are created, as ``create_queue`` takes them."""
OPTIONS = frozenset({"api_key", "server_key", *OF_QUEUES})
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
        queue_options = {name: options[name] for name in OF_QUEUES if options.get(name) is not None}
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

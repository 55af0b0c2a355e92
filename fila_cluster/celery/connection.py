"""One connection of kombu: a client of the broker, its channels, and the two ways to wait for their messages.

In an event loop (prefork, threads and solo workers) the loop watches the client's descriptor. Elsewhere (gevent, scripts)
``drain_events`` waits. The client renews its leases in a thread of its own, so they survive a task that blocks a solo worker
for minutes, and a restart of the broker.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from fila_cluster.celery.channel import Channel
from fila_cluster.celery.exchanges import Exchanges, Names
from fila_cluster.client.io import inside
from fila_cluster.client.polled import PolledClient
from fila_cluster.client.requests.endpoints import parse_endpoints
from fila_proto_zmq.commands import GetPlacement
from fila_proto_zmq.errors import FilaError


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

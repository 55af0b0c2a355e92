"""The connections of the observer's address: how many there are, and how much and how long one may send before it asks for something.

All of this comes before authentication, so it is bounded for everybody. The server's other parser, httptools, keeps whatever headers
come, and the server itself lets a connection wait for its first request for ever.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES_MAX: Final = 64 * 1024
"""Of a request's first line and headers."""
HEAD_S_MAX: Final = 10.0
"""How long a connection may be without a request, and how long the head of one may take."""
CONNECTIONS_MAX: Final = 2000
"""At a time: twice the requests that the HTTP door carries out, and room for open pages."""


class Connection(H11Protocol):
    """One connection. It is closed when there are too many, and when it brings no request in time."""

    head_s_max = HEAD_S_MAX
    connections_max = CONNECTIONS_MAX
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in the class above
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.close()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came. One byte now and then is no request."""
        super().data_received(data)
        self._watch()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket, which asks for signs of life."""
        self._unwatch()
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        """Await a request while none is being answered. Between two requests the server's own time for idle connections counts, too."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.head_s_max, self._close_late)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        self.transport.close()

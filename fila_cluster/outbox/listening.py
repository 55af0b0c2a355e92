"""The pause of a relay that has nothing to do: until a transaction that added a message commits, or for a while."""

import logging
import time
from threading import Event
from typing import Any, Final

from sqlalchemy import Engine

from fila_cluster.outbox.table import CHANNEL

STOP_S_MAX: Final = 0.25
"""How long a relay that waits for PostgreSQL may take to notice that it is to stop."""

_log = logging.getLogger("fila_cluster.outbox")


class Pauses:
    """Waits for news. PostgreSQL by psycopg wakes it; other databases and drivers are looked at after each ``poll_s``."""

    def __init__(self, engine: Engine, poll_s: float, stop: Event) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self._stop = stop
        self._listener: Any = None

    def listen(self) -> None:
        """Open a connection that hears of commits, where there is such a thing and it is not open. To be done before rows are looked for."""
        if self._listener is not None or (self._engine.dialect.name, self._engine.driver) != ("postgresql", "psycopg"):
            return
        try:
            self._listener = _listening(self._engine)
        except _driver_error() as error:  # the turn that follows says it, too, unless only this connection is one too many
            _log.warning(
                "cannot listen to PostgreSQL, so the outbox is looked at each %g s: %s", self._poll_s, type(error).__name__
            )

    def wait(self, at_most_s: float) -> None:
        """Return when there is news, or at the next look, or when the relay is to stop."""
        until = time.monotonic() + min(at_most_s, self._poll_s)
        if self._listener is None:
            self._stop.wait(max(0.0, until - time.monotonic()))
            return
        try:
            while not self._stop.is_set() and (left_s := until - time.monotonic()) > 0:
                if any(True for _ in self._listener.notifies(timeout=min(left_s, STOP_S_MAX), stop_after=1)):
                    list(self._listener.notifies(timeout=0))  # of other commits: one look is for all of them
                    return
        except _driver_error() as error:  # the server was restarted: the next turn connects again
            _log.warning("the connection that listens to PostgreSQL was lost: %s", type(error).__name__)
            self.close()

    def close(self) -> None:
        """Close the connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def _listening(engine: Engine) -> Any:
    """Return a connection of the driver that is no longer the pool's, and hears of commits."""
    pooled = engine.raw_connection()
    listener: Any = pooled.driver_connection
    pooled.detach()
    try:
        listener.rollback()
        listener.autocommit = True
        listener.execute(f"LISTEN {CHANNEL}")
    except BaseException:
        listener.close()
        raise
    return listener


def _driver_error() -> type[Exception]:
    import psycopg  # noqa: PLC0415 # only where its connection is in use

    return psycopg.Error

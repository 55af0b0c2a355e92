"""A client and queues that are made on first use: for libraries whose users make things at import, and fork later."""

import atexit
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from fila_cluster.client.blocking import Client
from fila_proto_zmq.errors import PermissionDeniedError, QueueExistsError, QueueNotFoundError

_made: "WeakSet[LazyClient]" = WeakSet()


class LazyClient:
    """Opens a client on its first use, and another one in each child of a fork; closes it when the process ends. Thread-safe.

    ``settings`` are the arguments of :class:`~fila_cluster.Client`. A client that is ``given`` is used instead: it is not
    closed here, and in a child it refuses its use.
    """

    def __init__(self, given: Client | None = None, **settings: Any) -> None:
        self.settings = settings
        self._given = given is not None
        self._lock = threading.Lock()
        self._client = given
        self._of_the_parent: Client | None = None
        """Kept, because it was disowned, not closed: nothing of it may be cleaned up here."""
        _made.add(self)

    def get(self) -> Client:
        """Return the client of this process; another one after :meth:`close`."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client
                if client is None:
                    client = self._client = Client(**self.settings)
        return client

    @property
    def opened(self) -> Client | None:
        """The client of this process, if there is one."""
        return self._client

    def close(self) -> None:
        """Close the client of this process, if there is one: unsettled messages go back."""
        if self._given:
            return
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _forget(self) -> None:
        if self._given:
            return
        self._lock = threading.Lock()  # a thread that is not here may have it
        self._of_the_parent, self._client = self._client or self._of_the_parent, None


def make_queue(client: Client, queue: str, options: Mapping[str, Any]) -> None:
    """Create a queue, unless there is one. An API key that may not create queues uses those that an operator has created."""
    with suppress(QueueExistsError, PermissionDeniedError):
        client.create_queue(queue, **options)


def enqueue_making_queue(client: Client, queue: str, payload: bytes, made_with: Mapping[str, Any], **options: Any) -> None:
    """Enqueue a message. If there is no such queue, create it with the options ``made_with``."""
    try:
        client.enqueue(queue, payload, **options)
    except QueueNotFoundError:
        make_queue(client, queue, made_with)
        client.enqueue(queue, payload, **options)


def _forget_all() -> None:
    for each in list(_made):
        each._forget()


def _close_all() -> None:
    for each in list(_made):
        each.close()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)

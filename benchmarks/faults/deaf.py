"""Clients that ask and never read: bare sockets with the smallest buffers."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import zmq

from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import Browse, Hello, Receive, Subscribe

DEAF_QUESTIONS = 10
"""Questions a second of each client."""


class Deaf:
    """So many clients, for the length of a ``with`` block. They browse ``busy`` queues, and lease messages of ``own``
    ones."""

    def __init__(self, endpoint: str, clients: int, busy: Sequence[str], own: Sequence[str]) -> None:
        self._busy, self._own = busy, own
        self._context = zmq.Context()
        self._stop = threading.Event()
        self._sockets = [self._connected(endpoint) for _ in range(clients)]
        self._thread = threading.Thread(target=self._ask)
        self.asked = 0

    def _connected(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.RCVHWM, 1), (zmq.SNDHWM, 10), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
            socket.setsockopt(option, value)
        socket.connect(endpoint)
        return socket

    def _ask(self) -> None:
        hello, subscribe = encode_command(Hello([1], "deaf"), 1), Subscribe(1, 1000)
        for number, socket in enumerate(self._sockets):
            self._send(socket, hello)
            self._send(socket, encode_command(subscribe, 2, self._own[number % len(self._own)]))
        requests = count(3)
        while not self._stop.wait(1 / DEAF_QUESTIONS):
            for number, socket in enumerate(self._sockets):
                asked = self._busy[number % len(self._busy)], self._own[number % len(self._own)]
                self._send(socket, encode_command(Browse(1000), next(requests), asked[0]))
                self._send(socket, encode_command(Receive(500), next(requests), asked[1]))

    def _send(self, socket: "zmq.Socket[bytes]", frame: list[bytes]) -> None:
        with suppress(zmq.Again):
            socket.send_multipart(frame, zmq.NOBLOCK)
            self.asked += 1

    def __enter__(self) -> "Deaf":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for socket in self._sockets:
            socket.close()
        self._context.term()

"""The router's two sockets: the front for clients, the back for workers.

Both are ZeroMQ ROUTERs that drop nothing silently: a peer that is gone or does not read is an error to the sender. A worker
that comes back takes over the name of its old connection, which may not be closed yet. At the front no client takes over a
name: frames of a second peer with the same one are not read. Clients have no names there, see
:mod:`fila_router.core.sessions`.

The core bounds the requests that wait for a worker. Only a few frames of a client are taken in advance (then its connection
is not read), and only a few are kept in its pipe: so :mod:`fila_router.core.unread` can count how much the client reads.

Two properties of libzmq would otherwise let any program, or any page in a browser, harm the broker:

- A peer whose first byte is not 0xFF is taken for one of ZMTP 1.0, which has no handshake: the bytes of an HTTP POST are then
  frames. With a ZAP domain, libzmq refuses such peers; no ZAP handler is needed.
- Peers without a routing id get numbered ones, and a peer that chose the next number beforehand makes libzmq abort. The first
  number comes from ``rand()``, which has the same seed in each process: it gets another seed.
"""

import ctypes
import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from typing import Final, TypeAlias

import zmq

from fila_proto_zmq.limits import ENVELOPE_OVERHEAD_BYTES, FRAME_BYTES_MAX
from fila_router.core.limits import DEFAULTS
from fila_router.settings import RouterSettings

Socket: TypeAlias = "zmq.Socket[bytes]"

CLIENTS: Final = "fila"
WORKERS: Final = "fila-workers"
"""ZAP domains: each admits other peers."""

LINGER_MS = 500
"""How long a stopping router tries to send its last answers."""

BACKLOG = 1024
"""Connections that may wait to be accepted, when all clients come back at once."""

_OPTIONS: dict[zmq.SocketOption, int | bytes] = {
    zmq.ROUTER_MANDATORY: 1,
    zmq.ZAP_DOMAIN: b"fila",
    zmq.LINGER: LINGER_MS,
    zmq.BACKLOG: BACKLOG,
    zmq.TCP_KEEPALIVE: 1,  # a peer whose machine is gone is noticed after 30 + 3 × 10 s
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
_REASONS: dict[int | None, str] = {
    errno.EADDRINUSE: "address already in use; stop the other process or choose another",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct",
    errno.ENODEV: "this machine has no such address; correct",
    errno.EACCES: "permission denied; use a port above 1023 or a directory that is yours in",
    errno.EINVAL: "not an endpoint; use tcp://HOST:PORT or ipc://PATH in",
    errno.ENAMETOOLONG: "the path is too long for a socket; use a shorter one in",
}


class CannotListenError(Exception):
    """The router can't listen on an endpoint; the text has the remedy."""


def open_front(context: "zmq.Context[Socket]", settings: RouterSettings) -> Socket:
    """Listen for clients. A frame larger than any payload allows closes its sender's connection."""
    frame_bytes_max = settings.max_payload_bytes + FRAME_BYTES_MAX + ENVELOPE_OVERHEAD_BYTES
    limits: dict[zmq.SocketOption, int | bytes] = {
        zmq.MAXMSGSIZE: frame_bytes_max,
        zmq.RCVHWM: DEFAULTS.inbound_frames,
        zmq.SNDHWM: DEFAULTS.pipe_frames,
    }
    return _listen(context, settings.listen, "--listen", _OPTIONS | limits | _encryption(settings, settings.listen, CLIENTS))


def open_back(context: "zmq.Context[Socket]", settings: RouterSettings) -> Socket:
    """Listen for workers."""
    limits: dict[zmq.SocketOption, int | bytes] = {zmq.ROUTER_HANDOVER: 1, zmq.RCVHWM: 0, zmq.SNDHWM: 0}
    encryption = _encryption(settings, settings.worker_listen, WORKERS)
    return _listen(context, settings.worker_listen, "--worker-listen", _OPTIONS | limits | encryption)


def _encryption(settings: RouterSettings, endpoint: str, domain: str) -> dict[zmq.SocketOption, int | bytes]:
    """Return the options of CurveZMQ: empty without authentication, or for a socket file, which only its user can open."""
    if settings.auth is None or endpoint.startswith("ipc://"):
        return {}
    return {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: (
            settings.auth.server if domain == CLIENTS else settings.auth.workers_server
        ).secret_key.encode(),
        zmq.ZAP_DOMAIN: domain.encode(),
    }


@contextmanager
def checked_workers(context: "zmq.Context[Socket]", settings: RouterSettings) -> Iterator[None]:
    """Refuse workers that connect over TCP without the workers' key. Clients bring API keys instead."""
    if settings.auth is None or settings.worker_listen.startswith("ipc://"):
        yield
        return
    from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415 # it takes asyncio, which other routers do without

    allowed = settings.auth.workers_public_key.encode()
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    try:
        authenticator.configure_curve_callback(CLIENTS, _Peers(None))
        authenticator.configure_curve_callback(WORKERS, _Peers(allowed))
        yield
    finally:
        authenticator.stop()


class _Peers:
    """The public key whose owner may connect; None: any. The authenticator asks for each peer."""

    def __init__(self, allowed: bytes | None) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a peer with this public key, Z85, may connect."""
        return self._allowed is None or compare_digest(key, self._allowed)


def _seed() -> None:
    """Seed ``rand()``, so that no peer can guess the numbers that libzmq gives out."""
    try:
        ctypes.CDLL(None).srand(secrets.randbits(32))
    except (OSError, AttributeError):  # this libc can't be reached in this way: the numbers can be guessed, the rest works
        return


def _listen(context: "zmq.Context[Socket]", endpoint: str, flag: str, options: dict[zmq.SocketOption, int | bytes]) -> Socket:
    _seed()
    socket = context.socket(zmq.ROUTER)
    for option, value in options.items():
        socket.set(option, value)
    socket.set(zmq.IPV6, int("[" in endpoint))
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        reason = _REASONS.get(error.errno, f"{error.strerror}; correct")
        raise CannotListenError(f"cannot listen on {endpoint}: {reason} {flag}") from None
    return socket

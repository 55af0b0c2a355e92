"""The endpoints of a cluster: how people write them, and the order in which a client tries them.

All routers of a cluster are alike. A client has a link to one of them, and moves to the next when that one is lost. A
*round* tries each known endpoint once; a pause follows, and another round. Endpoints on the client's own machine come
first, because they cost no network; the others come in a random order, so that the clients spread. A name may stand for
several addresses, and each of them is an endpoint; names are looked up again in each round, and an outage of the name
server forgets nothing.
"""

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random
from typing import Final
from urllib.parse import urlsplit

from fila_proto_zmq.errors import InvalidArgumentError

ENDPOINT_DEFAULT: Final = "tcp://127.0.0.1:5555"
ENDPOINTS_MAX: Final = 32
"""In one list."""
ADDRESSES_MAX: Final = 64
"""Of one name."""
IPC_PATH_BYTES_MAX: Final = 107
"""The system's own limit."""

ATTEMPT_S_MIN: Final = 0.5
ATTEMPT_S_MAX: Final = 8.0
"""How long a router may take to greet: longer with each round, because the network may be slow, and for a single one."""
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 0.25
"""Between two rounds: a router restarts in less than a second."""
SILENCE_S_MIN: Final = 0.5
SILENCE_S_MAX: Final = 8.0
"""How long a router may leave a heartbeat of ZeroMQ unanswered. A large frame on a slow network holds heartbeats up, so
each link that was lost soon after it was made doubles this for the next one."""
ALONE_SILENCE_S: Final = 30.0
"""The same for a single router on another machine: the address may be that of a load balancer, or a Service of Kubernetes,
with other routers behind it. TCP itself notices after a quarter of an hour that a machine has vanished, if something was
just sent to it."""
LASTING_S: Final = 10.0
"""A link that was lost sooner counts as an attempt of its round."""
EXPONENT_MAX: Final = 10
"""Doublings beyond it change nothing."""

_TCP = re.compile(r"tcp://(?P<host>\[[^\s\[\]]+\]|[^\s\0:/\[\]*;@]+):(?P<port>\d{1,5})")
_IPC = "ipc://"
INSIDE: Final = "memory://"
"""Before the name of a broker in this process."""
_INSIDE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_FORM = f"write tcp://HOST:PORT or ipc://PATH, for example {ENDPOINT_DEFAULT}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One part of a list. ``name``: the host, if it is a name that may stand for several addresses. ``inside``: the name
    of a broker in this process, if it is one."""

    text: str
    name: str = ""
    port: int = 0
    inside: str = ""


def parse_endpoints(text: str) -> list[Endpoint]:
    """Read endpoints with commas between; :class:`InvalidArgumentError` names the wrong part. Repeated ones count once."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > ENDPOINTS_MAX:
        raise InvalidArgumentError(f"endpoint: a list of {len(parts)}: at most {ENDPOINTS_MAX}; a name may stand for more")
    endpoints: dict[Endpoint, None] = {}
    for number, part in enumerate(parts, 1):
        try:
            endpoints[_parse(part)] = None
        except ValueError as error:
            where = "" if len(parts) == 1 else f" (number {number} of {text!r})"
            raise InvalidArgumentError(f"endpoint {part!r}{where}: {error}") from None
    if len(endpoints) > 1 and (inside := next((each for each in endpoints if each.inside), None)):
        raise InvalidArgumentError(f"endpoint {text!r}: {inside.text} is a broker in this process; use it alone")
    return list(endpoints)


def _parse(text: str) -> Endpoint:
    if text.startswith(_IPC) and "\0" not in text:
        size = len(text.removeprefix(_IPC).encode())
        if not 0 < size <= IPC_PATH_BYTES_MAX:
            raise ValueError(f"a path of {size} bytes: {_FORM}, with a path of at most {IPC_PATH_BYTES_MAX} bytes")
        return Endpoint(text)
    if text.startswith(INSIDE):
        name = text.removeprefix(INSIDE)
        if _INSIDE_NAME.fullmatch(name) is None:
            raise ValueError(
                "write memory://NAME for a broker in this process; a name is 1 to 100 letters, digits, or any of . _ -"
            )
        return Endpoint(text, inside=name)
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"{_FORM}; put commas between several")
    port = int(match["port"])
    if not 0 < port < 65536:
        raise ValueError(f"port {port}: a port is a number from 1 to 65535")
    host = match["host"]
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        if host.startswith("["):
            raise ValueError(f"{host} is no IPv6 address") from None
        return Endpoint(text) if host == "localhost" else Endpoint(text, host, port)
    return Endpoint(text)


def is_local(endpoint: str) -> bool:
    """Return whether an endpoint, with an address and no name, is on this machine for sure."""
    if endpoint.startswith((_IPC, INSIDE)):
        return True
    host = urlsplit(endpoint).hostname or ""
    return host == "localhost" or ip_address(host).is_loopback


class EndpointRounds:
    """The order in which a client tries its endpoints.

    ``alone``: there is one endpoint, and it stands for itself: libzmq itself connects to it again. ``names``: the
    endpoints whose addresses are to be looked up. ``current``: the endpoint tried last.
    """

    def __init__(self, endpoints: Iterable[Endpoint], random: Random) -> None:
        known = list(endpoints)
        self.inside = known[0].inside if known else ""
        """The name of the broker, if it is one in this process."""
        self.names = [endpoint for endpoint in known if endpoint.name]
        self.alone = len(known) == 1 and not self.names
        self.current = ""
        self._addresses = {endpoint: [] if endpoint.name else [endpoint.text] for endpoint in known}
        self._random = random
        self._failed = 0
        """Rounds since a link lasted."""
        self._brief = 0
        """Links in a row that were lost soon after a router had greeted."""
        self._tried_at = -math.inf
        self._left = deque(self._order())

    @property
    def attempt_s(self) -> float:
        """How long the current endpoint may take to greet."""
        return float(min(ATTEMPT_S_MAX, ATTEMPT_S_MIN * 2**self._failed)) if self._several else ATTEMPT_S_MAX

    @property
    def silence_s(self) -> float | None:
        """How long the current router may be silent; None: for ever, for the only router if there is no network to it."""
        if self._several:
            return float(min(SILENCE_S_MAX, SILENCE_S_MIN * 2**self._brief))
        return None if not self.current or is_local(self.current) else ALONE_SILENCE_S

    def next(self, now: float) -> str | None:
        """Return the next endpoint to try; None if the round is over."""
        if not self._left:
            return None
        self._tried_at = now
        self.current = self._left.popleft()
        return self.current

    def lost(self, now: float) -> None:
        """Note that the current router is lost, after it has greeted. If it lasted, it comes last in a new round."""
        if now - self._tried_at < LASTING_S:
            self._brief = min(self._brief + 1, EXPONENT_MAX)
            return
        self._failed = self._brief = 0
        self._left = deque(self._order(last=self.current))

    def over(self) -> float:
        """Begin another round; return the seconds until then."""
        pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2**self._failed) * self._random.uniform(0.5, 1.0)
        self._failed = min(self._failed + 1, EXPONENT_MAX)
        self._left = deque(self._order())
        return float(pause_s)

    def found(self, endpoint: Endpoint, addresses: Iterable[str]) -> None:
        """Note the addresses of a name, as endpoints. New ones join the round, and those that are gone leave it."""
        before = self._known()
        self._addresses[endpoint] = self._shuffled(addresses)[:ADDRESSES_MAX]
        known = self._known()
        if self.current:
            self._left = deque(
                [*(each for each in self._left if each in known), *(each for each in known if each not in before)]
            )
        else:
            self._left = deque(self._order())

    @property
    def _several(self) -> bool:
        return len(self._addresses) > 1 or len(self._known()) > 1

    def _known(self) -> dict[str, None]:
        return dict.fromkeys(address for addresses in self._addresses.values() for address in addresses)

    def _order(self, last: str = "") -> list[str]:
        return sorted(self._shuffled(self._known()), key=lambda address: (address == last, not is_local(address)))

    def _shuffled(self, addresses: Iterable[str]) -> list[str]:
        shuffled = list(addresses)
        self._random.shuffle(shuffled)
        return shuffled

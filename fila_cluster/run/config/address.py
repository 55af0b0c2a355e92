"""Addresses as people write them, ``host:port`` or ``tcp://host:port``, and which machines can reach them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations
from typing import Annotated, Self

from pydantic import BeforeValidator, PlainSerializer

from fila_proto_zmq.errors import InvalidConfigError

_SHAPE = re.compile(r"(?:tcp://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5}|\*)")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Addresses that mean all addresses of a machine, and how the machine itself reaches them."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on. ``port`` 0: the system picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read an address; :class:`ValueError` shows the form."""
        if isinstance(text, cls):
            return text
        match = _SHAPE.fullmatch(str(text))
        port = 0 if match is None or match["port"] == "*" else int(match["port"])
        if match is None or port > 65535:
            raise ValueError("not an address: write HOST:PORT or tcp://HOST:PORT, with a port up to 65535")
        return cls(match["host"].replace("*", "0.0.0.0"), port)

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ and clients write it."""
        return f"tcp://{self}"

    @property
    def reachable(self) -> Self:
        """The address to which a client on this machine connects."""
        return type(self)(_EVERYWHERE.get(self.host, self.host), self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


ConfiguredAddress = Annotated[Address, BeforeValidator(Address.parse), PlainSerializer(str)]
"""An address as a configuration value."""


def checked_address(text: str, flag: str) -> Address:
    """Return the address that a flag names; :class:`InvalidConfigError` names the flag."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise InvalidConfigError(f"{flag} {text}: {error}") from None


def refuse_exposure(addresses: Iterable[Address], *, insecure: bool, auth: bool) -> None:
    """Raise :class:`InvalidConfigError` for an address that other machines can reach, without ``auth`` or ``insecure``."""
    for address in addresses:
        if not (auth or insecure or address.is_loopback):
            raise InvalidConfigError(
                f"{address} can be reached from other machines, and clients there would need no key: "
                "listen on 127.0.0.1, set [auth] enabled = true, or add --insecure if the network is trusted"
            )


def refuse_sharing(addresses: Mapping[str, Address]) -> None:
    """Raise :class:`InvalidConfigError` if two listeners have the same address. The keys are the addresses' flags."""
    for (flag, address), (other, again) in combinations(addresses.items(), 2):
        if address.port and address.reachable == again.reachable:
            raise InvalidConfigError(f"{flag} {address} and {other} {again} are the same: give each a port of its own")

"""Hosts with networks of their own on one machine: a network namespace for each, joined by a bridge, and ways to cut them off.

    with network(3) as net:
        subprocess.Popen([*net.enter(0), "fila-cluster", "node", …])     # listens at net.address(0)
        net.cut(0, net.brokers)
        net.heal(0)

Clients and brokers stay outside, each with an address of their own on the bridge. A cut drops what the host sends there, so nothing is refused
and no connection is closed: both sides wait, as with a cable that was pulled. Needs Linux and root.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

FIRST_HOST = 11


def possible() -> bool:
    """Whether this machine lets this user make namespaces."""
    if os.geteuid() != 0:
        return False
    name = f"fila-try-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    _run("ip", "netns", "del", name)
    return True


@dataclass(frozen=True)
class Network:
    """A bridge and its hosts, which have the numbers from 0 on."""

    subnet: str
    name: str
    hosts: int

    @property
    def clients(self) -> str:
        """The address that clients outside come from."""
        return f"{self.subnet}.1"

    @property
    def brokers(self) -> str:
        """The address at which the brokers of the log listen."""
        return f"{self.subnet}.2"

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"{self.subnet}.{FIRST_HOST + host}"

    def space(self, host: int) -> str:
        """The name of a host's namespace."""
        return f"{self.name}-{host}"

    def enter(self, host: int) -> list[str]:
        """What to put before a command so that it runs on a host."""
        return ["ip", "netns", "exec", self.space(host)]

    def cut(self, host: int, *addresses: str) -> None:
        """Let nothing that a host sends reach some addresses."""
        for address in addresses:
            _run("ip", "-n", self.space(host), "route", "replace", "blackhole", f"{address}/32")

    def heal(self, host: int) -> None:
        """Undo all cuts of a host."""
        routes = _run("ip", "-n", self.space(host), "route", "show", "type", "blackhole").split("\n")
        for route in filter(None, routes):
            _run("ip", "-n", self.space(host), "route", "del", *route.split())

    def make(self) -> None:
        """Make the bridge and the namespaces."""
        _run("ip", "link", "add", self.name, "type", "bridge")
        for address in (self.clients, self.brokers):
            _run("ip", "addr", "add", f"{address}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        for host in range(self.hosts):
            space, outer, inner = self.space(host), f"{self.name}o{host}", f"{self.name}i{host}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", inner, "netns", space)
            _run("ip", "link", "set", outer, "master", self.name, "up")
            _run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", inner)
            _run("ip", "-n", space, "link", "set", inner, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove what is there of it."""
        for host in range(self.hosts):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", self.space(host))
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self.name)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """A network that is gone afterwards. Its subnet and name follow from this process's number, so two of them are apart."""
    number = os.getpid() % 200
    made = Network(f"10.77.{number}", f"fila{number}", hosts)
    made.remove()
    try:
        made.make()
        yield made
    finally:
        made.remove()

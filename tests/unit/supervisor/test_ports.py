"""Whether an address is free, and that it stays so for whom it was reserved."""

import socket
import sys
from collections.abc import Iterator

import pytest

from fila_cluster.config.address import Address
from fila_cluster.supervisor.endpoints import Ports
from fila_cluster.supervisor.failure import CannotStartError

HERE = Address("127.0.0.1", 0)


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as ports:
        yield ports


def test_a_free_port_can_be_listened_on_again_and_again(ports: Ports):
    address = ports.reserve(HERE, "--listen")
    assert address.port
    for _ in range(2):
        with socket.create_server((address.host, address.port)):
            pass
    assert ports.reserve(address, "--listen") == address


@pytest.mark.skipif(sys.platform != "linux", reason="no other system lets a port be kept")
def test_nobody_else_is_given_a_port_that_was_reserved(ports: Ports):
    address = ports.reserve(HERE, "--listen")
    with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
        somebody.bind((address.host, address.port))


def test_a_port_in_use_is_told_with_the_flag_to_change(ports: Ports):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStartError) as caught:
            ports.reserve(Address("127.0.0.1", port), "--worker-listen")
    assert str(caught.value) == (
        f"cannot listen on tcp://127.0.0.1:{port}: address already in use; "
        "stop the other process or choose another --worker-listen"
    )


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_no_machine_or_another_one_is_refused(ports: Ports, host: str):
    with pytest.raises(CannotStartError, match=f"cannot listen on tcp://{host}:0: "):
        ports.reserve(Address(host, 0), "--listen")


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
def test_other_ways_to_say_this_machine(ports: Ports, host: str):
    assert ports.reserve(Address(host, 0), "--listen").host == host

"""Whether an address is free."""

import socket

import pytest

from fila_cluster.config.address import Address
from fila_cluster.supervisor.failure import CannotStartError
from fila_cluster.supervisor.ports import reserve


def test_a_free_port_stays_free():
    address = reserve(Address("127.0.0.1", 0), "--listen")
    assert address.port
    assert reserve(address, "--listen") == address


def test_a_port_in_use_is_told_with_the_flag_to_change():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStartError) as caught:
            reserve(Address("127.0.0.1", port), "--worker-listen")
    assert str(caught.value) == (
        f"cannot listen on tcp://127.0.0.1:{port}: address already in use; "
        "stop the other process or choose another --worker-listen"
    )


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_no_machine_or_another_one_is_refused(host: str):
    with pytest.raises(CannotStartError, match=f"cannot listen on tcp://{host}:0: "):
        reserve(Address(host, 0), "--listen")


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
def test_other_ways_to_say_this_machine(host: str):
    assert reserve(Address(host, 0), "--listen").host == host

"""Addresses, and who can reach them."""

import pytest

from fila_cluster.run.config.settings import Address, refuse_exposure, refuse_sharing
from fila_proto_zmq.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5555", "127.0.0.1", 5555),
        ("tcp://127.0.0.1:5555", "127.0.0.1", 5555),
        ("tcp://*:1", "0.0.0.0", 1),
        ("localhost:0", "localhost", 0),
        ("broker.example.org:*", "broker.example.org", 0),
        ("[::1]:5555", "[::1]", 5555),
    ],
)
def test_what_an_address_is(text: str, host: str, port: int):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert address.endpoint == f"tcp://{host}:{port}"
    assert Address.parse(address) is address


@pytest.mark.parametrize(
    "text", ["", "5555", ":5555", "a:b", "a:70000", "ipc://x", "tcp://a", "::1:5555", "a:1:2", "a b:1", 5555]
)
def test_what_an_address_is_not(text: object):
    with pytest.raises(ValueError, match="write HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "reachable"),
    [("*:1", "127.0.0.1:1"), ("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")],
)
def test_how_this_machine_reaches_it(text: str, reachable: str):
    assert str(Address.parse(text).reachable) == reachable


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_loopback_is_open_to_all(text: str):
    refuse_exposure([Address.parse(text)], insecure=False, auth=False)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "*:1", "[::]:1", "10.0.0.1:1", "broker.example.org:1"])
def test_any_other_address_wants_a_word(text: str):
    address = Address.parse(text)
    with pytest.raises(InvalidConfigError, match="--insecure"):
        refuse_exposure([Address("127.0.0.1", 1), address], insecure=False, auth=False)
    refuse_exposure([address], insecure=True, auth=False)
    refuse_exposure([address], insecure=False, auth=True)


@pytest.mark.parametrize("other", ["127.0.0.1:1", "0.0.0.0:1"])
def test_one_address_for_two_is_an_error_with_both_flags(other: str):
    addresses = {"--listen": Address("127.0.0.1", 1), "--dashboard": Address.parse(other)}
    with pytest.raises(InvalidConfigError) as caught:
        refuse_sharing(addresses)
    assert str(caught.value) == f"--listen 127.0.0.1:1 and --dashboard {other} are the same: give each a port of its own"


def test_other_ports_and_any_free_ones_are_not_the_same():
    refuse_sharing({"--listen": Address("127.0.0.1", 1), "--dashboard": Address("127.0.0.1", 2)})
    refuse_sharing({"--listen": Address("127.0.0.1", 0), "--dashboard": Address("127.0.0.1", 0)})

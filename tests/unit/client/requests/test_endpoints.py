"""How endpoints are read, and in which order they are tried."""

from collections import Counter
from random import Random

import pytest

from fila_cluster.client.requests.endpoints import (
    ADDRESSES_MAX,
    ALONE_SILENCE_S,
    ATTEMPT_S_MAX,
    ENDPOINTS_MAX,
    EXPONENT_MAX,
    LASTING_S,
    PAUSE_S_MAX,
    SILENCE_S_MAX,
    SILENCE_S_MIN,
    Endpoint,
    EndpointRounds,
    is_local,
    parse_endpoints,
)
from fila_proto_zmq.errors import InvalidArgumentError

THREE = ["tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555", "tcp://10.0.0.3:5555"]
NAME = Endpoint("tcp://routers:5555", "routers", 5555)


def rounds(text: str, seed: int = 1) -> EndpointRounds:
    return EndpointRounds(parse_endpoints(text), Random(seed))


def tried(rounds: EndpointRounds, now: float = 0.0) -> list[str]:
    """What is left of a round."""
    found = []
    while (endpoint := rounds.next(now)) is not None:
        found.append(endpoint)
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_list_is_read_with_or_without_spaces_and_repeated_parts_count_once() -> None:
    text = "tcp://a:5555, ipc://fila.sock ,tcp://10.0.0.1:1,tcp://[::1]:65535,tcp://localhost:5555,tcp://a:5555"
    assert parse_endpoints(text) == [
        Endpoint("tcp://a:5555", "a", 5555),
        Endpoint("ipc://fila.sock"),
        Endpoint("tcp://10.0.0.1:1"),
        Endpoint("tcp://[::1]:65535"),
        Endpoint("tcp://localhost:5555"),
    ]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("", "tcp://HOST:PORT"),
        ("a:5555", "tcp://HOST:PORT"),
        ("http://a:5555", "tcp://HOST:PORT"),
        ("tcp://a", "tcp://HOST:PORT"),
        ("tcp://:5555", "tcp://HOST:PORT"),
        ("tcp://*:5555", "tcp://HOST:PORT"),
        ("tcp://a:port", "tcp://HOST:PORT"),
        ("tcp://a;b:5555", "commas between"),
        ("tcp://a b:5555", "tcp://HOST:PORT"),
        ("tcp://::1:5555", "tcp://HOST:PORT"),
        ("tcp://a:5555/path", "tcp://HOST:PORT"),
        ("tcp://a\0:5555", "tcp://HOST:PORT"),
        ("tcp://a:0", "1 to 65535"),
        ("tcp://a:65536", "1 to 65535"),
        ("tcp://[a]:5555", "no IPv6 address"),
        ("ipc://", "0 bytes"),
        ("ipc://a\0b", "tcp://HOST:PORT"),
        (f"ipc:///{'x' * 107}", "at most 107 bytes"),
    ],
)
def test_an_error_names_the_part_that_is_wrong(part: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"endpoint.*{why}") as alone:
        parse_endpoints(part)
    assert str(alone.value).startswith(f"endpoint {part!r}: ")
    with pytest.raises(InvalidArgumentError, match=why) as second:
        parse_endpoints(f"tcp://a:5555,{part}")
    assert str(second.value).startswith(f"endpoint {part!r} (number 2 of ")


def test_a_list_has_a_bound() -> None:
    longest = ",".join(f"tcp://a{number}:5555" for number in range(ENDPOINTS_MAX))
    assert len(parse_endpoints(longest)) == ENDPOINTS_MAX
    with pytest.raises(InvalidArgumentError, match=f"at most {ENDPOINTS_MAX}"):
        parse_endpoints(f"{longest},tcp://b:5555")


@pytest.mark.parametrize(
    "endpoint", ["ipc://fila.sock", "tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://[::1]:1", "tcp://localhost:1"]
)
def test_what_is_on_this_machine(endpoint: str) -> None:
    assert is_local(endpoint)


@pytest.mark.parametrize("endpoint", [*THREE, "tcp://[2001:db8::1]:1", "tcp://[fe80::1%eth0]:1"])
def test_what_is_elsewhere(endpoint: str) -> None:
    assert not is_local(endpoint)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_tries_each_endpoint_once() -> None:
    several = rounds(",".join(THREE))
    for _ in range(3):
        assert sorted(tried(several)) == THREE
        several.over()


def test_clients_spread_over_the_endpoints() -> None:
    firsts = Counter(rounds(",".join(THREE), seed).next(0.0) for seed in range(300))
    assert set(firsts) == set(THREE)
    assert min(firsts.values()) > 70


def test_the_same_random_numbers_give_the_same_order() -> None:
    assert tried(rounds(",".join(THREE), 5)) == tried(rounds(",".join(THREE), 5))


def test_endpoints_of_this_machine_come_first() -> None:
    text = ",".join([*THREE, "ipc://fila.sock", "tcp://127.0.0.1:5555"])
    for seed in range(20):
        assert set(tried(rounds(text, seed))[:2]) == {"ipc://fila.sock", "tcp://127.0.0.1:5555"}


def test_a_lost_router_comes_last_in_the_round_that_begins_with_its_loss() -> None:
    for seed in range(20):
        several = rounds(",".join([*THREE, "tcp://127.0.0.1:1"]), seed)
        lost = several.next(0.0)
        several.lost(LASTING_S)
        after = tried(several, LASTING_S)
        assert (after[-1], len(after)) == (lost, 4), "also where it is on this machine"


def test_a_router_that_was_there_for_a_moment_counts_as_an_attempt() -> None:
    """Or a client would go round without a pause, where each router greets and is lost."""
    several = rounds(",".join(THREE))
    several.next(0.0)
    several.lost(LASTING_S - 0.1)
    assert len(tried(several)) == 2


def test_pauses_and_attempts_grow_with_the_rounds_until_a_link_has_lasted() -> None:
    several = rounds(",".join(THREE))
    attempts, pauses = [], []
    for _ in range(EXPONENT_MAX + 5):
        tried(several)
        attempts.append(several.attempt_s)
        pauses.append(several.over())
    assert attempts[:4] == [0.5, 1.0, 2.0, 4.0]
    assert attempts[-1] == ATTEMPT_S_MAX
    assert pauses[0] <= 0.05 < 0.1 < pauses[-1] <= PAUSE_S_MAX
    several.next(0.0)
    several.lost(LASTING_S)
    assert several.attempt_s == 0.5


def test_a_router_may_be_silent_for_longer_where_links_are_lost_soon() -> None:
    """A large frame on a slow network delays heartbeats, and must get through in the end."""
    several = rounds(",".join(THREE))
    patience = []
    for _ in range(EXPONENT_MAX + 5):
        several.over()
        several.next(0.0)
        patience.append(several.silence_s)
        several.lost(0.6)
    assert patience[:3] == [SILENCE_S_MIN, 2 * SILENCE_S_MIN, 4 * SILENCE_S_MIN]
    assert patience[-1] == SILENCE_S_MAX
    several.lost(LASTING_S)
    assert several.silence_s == SILENCE_S_MIN


@pytest.mark.parametrize(
    ("endpoint", "silence_s"),
    [
        ("tcp://10.0.0.1:5555", ALONE_SILENCE_S),
        ("ipc://fila.sock", None),
        ("tcp://localhost:5555", None),
        ("tcp://[::1]:5555", None),
    ],
)
def test_one_endpoint_is_left_to_libzmq_which_looks_for_it_on_a_network(endpoint: str, silence_s: float | None) -> None:
    one = rounds(endpoint)
    assert (one.alone, one.names) == (True, [])
    assert tried(one) == [endpoint]
    assert one.silence_s == silence_s


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_stands_for_its_addresses() -> None:
    named = rounds(NAME.text)
    assert (named.names, named.alone) == ([NAME], False)
    assert tried(named) == []
    named.over()
    named.found(NAME, THREE)
    assert sorted(tried(named)) == THREE
    assert named.silence_s == SILENCE_S_MIN


def test_a_name_with_one_address_is_one_endpoint() -> None:
    named = rounds(NAME.text)
    named.found(NAME, THREE[:1])
    assert tried(named) == THREE[:1]
    assert (named.silence_s, named.attempt_s) == (ALONE_SILENCE_S, ATTEMPT_S_MAX)


def test_names_and_addresses_are_mixed_before_the_first_attempt() -> None:
    firsts = set()
    for seed in range(30):
        mixed = rounds(f"{THREE[0]},{NAME.text}", seed)
        mixed.found(NAME, THREE[1:])
        firsts.add(mixed.next(0.0))
    assert firsts == set(THREE)


def test_new_addresses_join_the_round_and_old_ones_leave_it() -> None:
    named = rounds(NAME.text)
    named.found(NAME, THREE[:2])
    first = named.next(0.0)
    named.found(NAME, [THREE[0], THREE[2]])
    assert set(tried(named)) == {THREE[0], THREE[2]} - {first}
    named.over()
    assert set(tried(named)) == {THREE[0], THREE[2]}


def test_the_addresses_of_a_name_have_a_bound() -> None:
    named = rounds(NAME.text)
    named.found(NAME, [f"tcp://10.0.{number // 256}.{number % 256}:5555" for number in range(1000)])
    assert len(tried(named)) == ADDRESSES_MAX

"""What proves that messages came, once and whole."""

import pytest

from fila_cluster.run.bench.latencies import Seen, joined, missing, surplus
from fila_cluster.run.bench.outcome import outcome_of
from fila_cluster.run.bench.workload import Consumed, Payloads, Produced, Workload

SEED = 7


@pytest.fixture
def payloads() -> Payloads:
    return Payloads(SEED, 100, 3)


def test_a_payload_says_which_message_it_is(payloads: Payloads):
    payload = payloads.make(2, 10**9, -5)
    assert len(payload) == 100
    assert payloads.check(payload, payloads.headers(10**9)) == (2, 10**9, -5)


def test_every_changed_byte_is_noticed(payloads: Payloads):
    payload, headers = payloads.make(0, 5, 1), payloads.headers(5)
    for place in range(100):
        changed = bytearray(payload)
        changed[place] ^= 1
        assert payloads.check(bytes(changed), headers) is None, place


@pytest.mark.parametrize("payload", [b"", b"x" * 39, b"x" * 100, b"x" * 101])
def test_what_another_program_sent_is_noticed(payloads: Payloads, payload: bytes):
    assert payloads.check(payload, payloads.headers(0)) is None


def test_what_another_run_sent_is_noticed(payloads: Payloads):
    other = Payloads(SEED + 1, 100, 3)
    assert payloads.check(other.make(0, 0, 0), other.headers(0)) is None


@pytest.mark.parametrize("headers", [{}, {"tenant": "tenant-0"}, {"tenant": "tenant-0", "number": "1"}])
def test_wrong_headers_are_noticed(payloads: Payloads, headers: dict[str, str]):
    assert payloads.check(payloads.make(0, 0, 0), headers) is None


def test_the_smallest_payload_is_a_stamp():
    payloads = Payloads(SEED, 40, 1)
    assert payloads.check(payloads.make(0, 3, 0), payloads.headers(3)) == (0, 3, 0)


def test_keys_take_turns(payloads: Payloads):
    assert [payloads.key(number) for number in range(4)] == ["tenant-0", "tenant-1", "tenant-2", "tenant-0"]


def test_a_number_is_new_once():
    seen = Seen()
    assert [seen.add(number) for number in (0, 9, 9, 1000, 0)] == [True, True, False, True, False]
    assert joined([seen.to_bytes()]) == 1 | 1 << 9 | 1 << 1000


def test_what_one_of_two_consumers_has_seen_is_not_missing():
    union = joined([b"\x05", b"\x02\x02"])
    assert [missing(union, sent) for sent in (3, 4, 10, 11)] == [0, 1, 6, 7]
    assert [surplus(union, sent) for sent in (10, 9, 2)] == [0, 1, 2]


# --- the verdict ------------------------------------------------------------------------------------------------------

WORKLOAD = Workload(
    messages=8,
    duration_s=None,
    payload_bytes=100,
    batch=4,
    keys=1,
    producers=2,
    consumers=2,
    rate_s=None,
    in_flight=1,
    backlog=False,
)


def produced(sent: int) -> Produced:
    return Produced(sent=sent, first_ns=10**9, last_ns=2 * 10**9, cpu_s=0.5, latencies={1000: sent})


def consumed(*numbers_of_producers: list[int], damaged: int = 0) -> Consumed:
    seen = {}
    for producer, numbers in enumerate(numbers_of_producers):
        bits = Seen()
        for number in numbers:
            bits.add(number)
        seen[producer] = bits.to_bytes()
    received = sum(map(len, numbers_of_producers)) + damaged
    return Consumed(
        seen=seen,
        received=received,
        damaged=damaged,
        wrong="a-1: 3 bytes" if damaged else "",
        first_ns=3 * 10**9,
        last_ns=5 * 10**9,
        cpu_s=1.0,
        latencies={2000: received},
    )


def test_a_run_in_which_everything_came():
    outcome = outcome_of(WORKLOAD, [produced(4), produced(4)], [consumed([0, 1], [0, 1, 2, 3]), consumed([2, 3])])
    assert (outcome.fault, outcome.lost, outcome.repeated, outcome.damaged) == ("", 0, 0, 0)
    assert (outcome.enqueue_rate, outcome.receive_rate, outcome.rate, outcome.seconds) == (8, 4, 2, 4)
    assert (outcome.producers_cpu, outcome.consumers_cpu) == (1.0, 1.0)
    assert outcome.confirming.figures_s()["p99"] == 0.001
    assert outcome.as_json()["delivery_histogram"] == [{"from": 0.002, "to": 0.005, "count": 8}]


def test_lost_messages_are_a_fault():
    outcome = outcome_of(WORKLOAD, [produced(4), produced(4)], [consumed([0, 1], [0, 1, 2, 3]), consumed([3])])
    assert outcome.lost == 1
    assert outcome.fault == "1 message never came"


def test_repeated_messages_are_counted_and_no_fault():
    outcome = outcome_of(WORKLOAD, [produced(4), produced(4)], [consumed([0, 1, 2, 3], [0, 1, 2, 3]), consumed([3, 3])])
    assert (outcome.fault, outcome.repeated) == ("", 2)


def test_messages_that_nobody_sent_are_a_fault():
    everything = consumed([0, 1, 2, 3], [0, 1, 2, 3, 4], damaged=2)
    outcome = outcome_of(WORKLOAD, [produced(4), produced(4)], [everything])
    assert (outcome.lost, outcome.repeated, outcome.damaged) == (0, 0, 3)
    assert outcome.fault == "3 messages came that nobody sent so (a-1: 3 bytes)"


def test_a_run_without_any_message_has_rates_of_zero():
    nothing = Consumed(seen={}, received=0, damaged=0, wrong="", first_ns=0, last_ns=0, cpu_s=0.0, latencies={})
    outcome = outcome_of(WORKLOAD, [produced(0)], [nothing])
    assert (outcome.fault, outcome.receive_rate, outcome.rate) == ("", 0, 0)
    assert outcome.as_json()["delivery_latency"] == {}


def test_the_messages_are_shared_among_the_producers():
    workload = Workload(**{name: getattr(WORKLOAD, name) for name in WORKLOAD.__struct_fields__} | {"producers": 3})
    assert [workload.share_of(producer) for producer in range(3)] == [3, 3, 2]

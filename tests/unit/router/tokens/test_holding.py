"""Which router holds the token bank: for how long, in which epoch, and what begins with it."""

import pytest

from fila_admission.limits import TRUST_MS
from fila_proto_zmq.commands import BankLease, Pulse, Pulsed, Tokens, TokenWant
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.tokens.token_grants import ALONE, Holding
from tests.unit.router.desk import Desk

RATE = "throttle:api:rate"
VOID_MS = 100


def holding(*, told_ms: int | None = 0) -> Holding:
    holding = Holding(TokenBank(), several=True, void_ms=VOID_MS)
    if told_ms is not None:
        holding.pulse_answered(told_ms)
    return holding


# --- loans ------------------------------------------------------------------------------------------------------------


def test_an_only_router_holds_the_bank_for_ever():
    alone = Holding(TokenBank(), several=False)
    assert alone.epoch(0) == alone.epoch(10**12) == ALONE


def test_one_of_several_holds_nothing_before_it_is_lent():
    assert holding().epoch(10**6) == 0


def test_a_loan_begins_when_earlier_tokens_are_void_and_ends_by_the_time_that_it_names():
    one = holding()
    one.lend(BankLease(5, 1000, 4000), 1500)
    assert [one.epoch(ms) for ms in (1500, 1599, 1600, 4999, 5000)] == [0, 0, 5, 5, 0]


def test_a_loan_is_prolonged_at_once_but_never_made_shorter():
    one = holding()
    one.lend(BankLease(5, 1000, 1000), 1000)
    one.lend(BankLease(5, 1100, 2000), 1200)
    one.lend(BankLease(5, 1200, 100), 1250)
    assert [one.epoch(ms) for ms in (1200, 3099, 3100)] == [5, 5, 0]
    one.lend(BankLease(5, 3100, 50), 3120)
    assert one.epoch(3130) == 5, "no other router held it meanwhile"


def test_a_late_loan_is_over():
    one = holding()
    one.lend(BankLease(5, 1000, 300), 1400)
    assert one.epoch(1400) == one.epoch(1500) == 0


@pytest.mark.parametrize("at_ms", [199, 501])
def test_a_loan_that_names_a_time_that_was_never_told_is_none(at_ms: int):
    one = holding(told_ms=200)
    one.lend(BankLease(5, at_ms, 10_000), 500)
    assert one.epoch(700) == 0


def test_a_loan_before_any_time_was_told_is_none():
    one = holding(told_ms=None)
    one.lend(BankLease(5, 500, 10_000), 500)
    assert one.epoch(700) == 0


def test_a_loan_of_an_earlier_epoch_is_none():
    one = holding()
    one.lend(BankLease(6, 0, 1000), 0)
    one.lend(BankLease(5, 0, 9000), 10)
    assert [one.epoch(ms) for ms in (999, 1000)] == [6, 0]


def test_a_new_epoch_waits_again():
    one = holding()
    one.lend(BankLease(5, 0, 9000), 0)
    assert one.epoch(500) == 5
    one.lend(BankLease(6, 400, 9000), 500)
    assert [one.epoch(ms) for ms in (599, 600)] == [0, 6]


# --- in a router ------------------------------------------------------------------------------------------------------


class Lender(Desk):
    """A router of several, with one worker that leads both shards."""

    def __init__(self) -> None:
        super().__init__(shards=2, several=True)
        self.register("worker-0", shards=(0, 1), config_version=1, config={RATE: "10"})
        self.told()

    def lend(self, epoch: int, for_ms: int = 60_000, worker: str = "worker-0") -> int:
        """A pulse with a loan; the bank that the router says it holds."""
        return _bank(self.say(worker, Pulse(1000, 3, bank=BankLease(epoch, self.now_ms, for_ms))))

    def bank(self) -> int:
        return _bank(self.pulse())

    def pass_void(self) -> None:
        self.pass_ms(TRUST_MS, "worker-0")

    def want(self, shard: int = 0, session: int = 1, consumed: float = 0) -> int:
        """How many tokens a shard has been granted, that wants as many as it can get."""
        settled = round(consumed * 1_000_000)
        self.mention("worker-0", Tokens(shard, session, [TokenWant(["api"], 1_000_000, 10**9, settled, 0)]))
        self.router.serve(self.now_ms)
        told = [command for _, command in self.told()]
        return sum(grant.granted for grants in told for grant in grants.grants) // 1_000_000  # type: ignore[attr-defined]


def _bank(reply: object) -> int:
    assert isinstance(reply, Pulsed)
    return reply.bank


def test_a_router_says_what_it_holds_and_grants_only_then():
    desk = Lender()
    desk.bank()
    desk.pass_ms(1000, "worker-0")
    assert (desk.bank(), desk.want()) == (0, 0)
    assert desk.router.next_due(desk.now_ms) is None
    assert desk.lend(3) == 0, "what another router granted is not void yet"
    desk.pass_void()
    assert desk.lend(3) == 3
    assert desk.want() == 0, "the bucket began empty"
    desk.pass_ms(1000, "worker-0")
    desk.router.serve(desk.now_ms)
    assert [type(command).__name__ for _, command in desk.told()] == ["Grants"]


def test_what_waits_at_a_router_is_not_served_once_the_loan_has_ended():
    desk = Lender()
    desk.bank()
    desk.lend(3, for_ms=TRUST_MS + 250)
    desk.pass_void()
    assert desk.bank() == 3
    desk.want()
    desk.pass_ms(250, "worker-0")
    assert desk.router.next_due(desk.now_ms) is None
    desk.router.serve(desk.now_ms)
    assert desk.told() == []
    assert desk.bank() == 0
    desk.lend(3)
    desk.router.serve(desk.now_ms)
    assert len(desk.told()) == 1, "nobody else held it meanwhile: it goes on with the same bank"


def test_a_new_bank_has_no_accounts_and_empty_buckets():
    desk = Lender()
    desk.bank()
    desk.lend(3)
    desk.pass_void()
    desk.bank()
    desk.pass_ms(1000, "worker-0")
    assert desk.want() == 10
    desk.lend(4)
    desk.pass_void()
    assert desk.bank() == 4
    assert desk.router._bank.sessions == {}
    assert desk.want(session=2) == 0
    desk.now_ms += 500
    assert desk.want(session=2) == 5


def test_only_the_leader_of_shard_0_lends():
    desk = Lender()
    desk.register("worker-1", shards=(1,), epoch=2, config_version=1, config={RATE: "10"})
    desk.pulse("worker-1")
    desk.lend(9, worker="worker-1")
    desk.pass_ms(TRUST_MS, "worker-0", "worker-1")
    assert desk.bank() == 0
    desk.register("worker-1", shards=(0, 1), epoch=3, config_version=1, config={RATE: "10"})
    desk.lend(9, worker="worker-1")
    desk.pass_ms(TRUST_MS, "worker-0", "worker-1")
    assert desk.lend(9, worker="worker-1") == 9


def test_a_worker_that_registers_again_goes_on_with_its_tokens():
    desk = Lender()
    desk.bank()
    desk.lend(3)
    desk.pass_void()
    desk.bank()
    desk.pass_ms(1000, "worker-0")
    assert desk.want() == 10
    desk.register("worker-0", shards=(0, 1), config_version=1, config={RATE: "10"})
    desk.told()
    desk.want(consumed=10)
    desk.now_ms += 500
    assert desk.want(consumed=10) == 15, "in the same session"


def test_a_worker_that_was_about_to_leave_and_registers_again_gets_tokens():
    desk = Lender()
    desk.bank()
    desk.lend(3)
    desk.pass_void()
    desk.bank()
    desk.want()
    desk.leave()
    desk.register("worker-0", shards=(0, 1), config_version=1, config={RATE: "10"})
    desk.told()
    desk.now_ms += 1000
    assert desk.want() == 10


def test_tokens_of_a_shard_with_a_new_leader_count_as_spent():
    desk = Lender()
    desk.bank()
    desk.lend(3)
    desk.pass_void()
    desk.bank()
    desk.pass_ms(1000, "worker-0")
    assert desk.want(shard=1) == 10
    desk.register("worker-1", shards=(1,), epoch=2, config_version=1, config={RATE: "10"})
    bucket = desk.router._bank.buckets["api"]
    assert (bucket.outstanding, bucket.level) == (0, 0)

"""Which router gets the token bank, and for how long: the plain cases. The others are in ``tests/property/scheduling/test_bank_lender.py``."""

from fila_proto_zmq.commands import BankLease
from fila_worker.log.leadership import Proof
from fila_worker.replication.bank_lender import DRIFT_MS, HOLDERS_BITS, LEASE_MS, BankLender, RouterView

SILENCE_MS = 6000
PROOF = Proof(7, 0, 60_000)
FIRST = (7 << HOLDERS_BITS) + 1


def routers(*lives: bool, bank: int = 0) -> list[RouterView]:
    return [RouterView(alive, 1000 + place, bank) for place, alive in enumerate(lives)]


def test_the_own_hosts_router_gets_it() -> None:
    lender = BankLender(SILENCE_MS)
    assert lender.lend(PROOF, routers(True, True), 0) == (0, BankLease(FIRST, 1000, LEASE_MS))
    assert lender.lend(PROOF, routers(True, True), 250) == (0, BankLease(FIRST, 1000, LEASE_MS))


def test_who_does_not_lead_lends_nothing() -> None:
    assert BankLender(SILENCE_MS).lend(None, routers(True), 0) is None


def test_a_lease_ends_before_another_host_may_claim() -> None:
    lender = BankLender(SILENCE_MS)
    assert lender.lend(Proof(7, 4000, 60_000), routers(True), 0) == (0, BankLease(FIRST, 1000, 1000))
    assert lender.lend(Proof(7, 5000, 60_000), routers(True), 1000) is None


def test_a_new_leader_waits_until_the_leases_of_another_one_have_ended() -> None:
    lender = BankLender(SILENCE_MS)
    assert lender.lend(Proof(7, 0, 4999), routers(True), 0) is None
    assert lender.lend(Proof(7, 0, 5000), routers(True), 0) is not None


def test_a_leader_after_one_that_has_left_waits_for_its_last_lease() -> None:
    lender = BankLender(SILENCE_MS)
    assert lender.lend(Proof(7, 0, LEASE_MS + DRIFT_MS - 1, 60_000), routers(True), 0) is None
    assert lender.lend(Proof(7, 0, LEASE_MS + DRIFT_MS, 60_000), routers(True), 0) is not None


def test_a_leader_after_one_that_had_not_waited_itself_waits_for_those_before() -> None:
    lender = BankLender(SILENCE_MS)
    assert lender.lend(Proof(7, 0, 3999, 1000), routers(True), 0) is None
    assert lender.lend(Proof(7, 0, 4000, 1000), routers(True), 0) is not None


def test_another_router_gets_it_when_the_last_lease_has_ended_and_keeps_it() -> None:
    lender = BankLender(SILENCE_MS)
    lender.lend(PROOF, routers(True, True), 0)
    assert lender.lend(PROOF, routers(False, True), LEASE_MS + DRIFT_MS - 1) is None
    assert lender.lend(PROOF, routers(False, True), LEASE_MS + DRIFT_MS) == (1, BankLease(FIRST + 1, 1001, LEASE_MS))
    assert lender.lend(PROOF, routers(True, True), LEASE_MS + DRIFT_MS + 250) == (1, BankLease(FIRST + 1, 1001, LEASE_MS))


def test_a_router_that_has_let_it_go_begins_a_new_epoch() -> None:
    lender = BankLender(SILENCE_MS)
    lender.lend(PROOF, routers(True), 0)
    lender.lend(PROOF, routers(True, bank=FIRST), 250)
    assert lender.lend(PROOF, routers(True, bank=0), 500) == (0, BankLease(FIRST + 1, 1000, LEASE_MS))
    assert lender.lend(PROOF, routers(True, bank=0), 750) == (0, BankLease(FIRST + 1, 1000, LEASE_MS)), "it is on its way"


def test_a_new_reign_begins_a_higher_epoch_at_the_same_router() -> None:
    lender = BankLender(SILENCE_MS)
    lender.lend(PROOF, routers(True), 0)
    lent = lender.lend(Proof(8, 0, 60_000), routers(True), 250)
    assert lent is not None
    assert lent[1].epoch > FIRST


def test_a_router_gets_it_when_it_has_told_its_time() -> None:
    unheard = [RouterView(True, 0, 0), RouterView(True, 1001, 0)]
    assert BankLender(SILENCE_MS).lend(PROOF, unheard, 0) is None

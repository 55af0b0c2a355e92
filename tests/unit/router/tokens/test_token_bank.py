"""The bank: what is granted when, to whom, and what becomes of tokens whose holder is gone."""

import pytest

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import Tokens, TokenWant
from fila_router.core.tokens import token_bank
from fila_router.core.tokens.bucket import HANDFUL_MS, NEVER_MS
from fila_router.core.tokens.token_bank import AMOUNT_MAX, IDLE_MS, REMIND_MS
from tests.unit.router.bank_desk import EPOCH, TOKEN, BankDesk, check, limit

# --- one bucket -------------------------------------------------------------------------------------------------------


def test_a_full_bucket_grants_what_can_be_used():
    desk = BankDesk(k=(10, 20))
    assert desk.ask(0, "k", 1, 5) == 5
    assert desk.ask(1, "k", 1, 100) == 15
    assert desk.ask(2, "k", 1, 100) == 0


def test_tokens_come_in_at_the_rate_once_others_are_spent():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    assert desk.wait(1000) == {}
    desk.spend(0, "k", least=1, most=1)
    assert desk.wait(99) == {}
    assert desk.wait(1) == {(0, "k"): 1}


def test_what_is_out_is_as_good_as_in_the_bucket():
    """Else tokens that are hoarded could add up with those that came in meanwhile."""
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 12)
    desk.now_ms += 60_000
    assert desk.level("k") == 8
    desk.spend(0, "k", 2)
    desk.now_ms += 60_000
    assert desk.level("k") == 10
    desk.spend(0, "k")
    desk.now_ms += 60_000
    assert desk.level("k") == 20


def test_tokens_that_come_back_are_there_for_others_at_once():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    assert desk.ask(1, "k", 1, 3) == 0
    desk.give_back(0, "k")
    assert desk.serve() == {(1, "k"): 3}


def test_a_want_counts_what_its_shard_holds():
    desk = BankDesk(k=(10, 20))
    assert desk.ask(0, "k", 1, 5) == 5
    assert desk.ask(0, "k", 1, 5) == 0
    assert desk.ask(0, "k", 8, 9) == 4


def test_the_next_appointment_is_exact_to_the_millisecond():
    desk = BankDesk(k=(200, 20))
    desk.ask(0, "k", 1, 20)
    desk.spend(0, "k", least=1, most=1)
    for _ in range(10):
        assert desk.bank.next_due(desk.now_ms) == 5
        assert desk.wait(5) == {(0, "k"): 1}
        desk.spend(0, "k", least=1, most=1)


def test_fractions_of_a_token_are_not_lost():
    desk = BankDesk(k=(0.3, 1))
    desk.ask(0, "k", 1, 1)
    desk.spend(0, "k", least=1, most=1)
    assert desk.wait(3333) == {}
    assert desk.wait(1) == {(0, "k"): 1}


def test_a_rate_of_nothing_grants_what_is_there_and_then_never():
    desk = BankDesk(k=(0, 2))
    assert desk.ask(0, "k", 1, 5) == 2
    desk.spend(0, "k", least=1, most=1)
    desk.serve()
    assert desk.waits[0, ("k",)] == NEVER_MS
    assert desk.wait(10**9) == {}


def test_what_is_wanted_no_more_is_not_granted():
    desk = BankDesk(k=(10, 1))
    desk.ask(0, "k", 1)
    desk.ask(1, "k", 1)
    desk.spend(0, "k")
    desk.say(1, "k")
    assert desk.wait(1000) == {}
    assert desk.bank.next_due(desk.now_ms) is None


# --- costs above the burst --------------------------------------------------------------------------------------------


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_leaves_it_in_debt():
    desk = BankDesk(k=(10, 2))
    desk.ask(0, "k", 1)
    desk.spend(0, "k")
    assert desk.ask(0, "k", 5) == 0
    assert desk.wait(99) == {}
    assert desk.wait(1) == {(0, "k"): 5}
    assert desk.level("k") == -3
    desk.spend(0, "k", least=1, most=1)
    assert desk.wait(399) == {}
    assert desk.wait(1) == {(0, "k"): 1}


def test_a_cost_above_the_burst_waits_until_nothing_is_out():
    desk = BankDesk(k=(10, 2))
    desk.ask(1, "k", 1)
    assert desk.ask(0, "k", 5) == 0
    assert desk.wait(10_000) == {}
    desk.spend(1, "k")
    assert desk.wait(100) == {(0, "k"): 5}


def test_a_shard_s_own_leftover_does_not_stand_in_its_way():
    desk = BankDesk(k=(10, 2))
    desk.ask(0, "k", 1, 2)
    desk.spend(0, "k", 1.5)
    assert desk.ask(0, "k", 5) == 0
    assert desk.wait(150) == {(0, "k"): 4.5}


def test_a_bucket_that_holds_nothing_and_gets_nothing_lets_nothing_through():
    desk = BankDesk(k=(0, 0))
    assert desk.ask(0, "k", 1, 5) == 0
    assert desk.wait(60_000) == {}
    desk.bank.limit("k", limit(1, 0), desk.now_ms, full=True)
    assert desk.wait(1_000) == {(0, "k"): 1}


def test_a_bucket_that_gets_nothing_lets_through_once_what_it_holds():
    desk = BankDesk(k=(0, 3))
    assert desk.ask(0, "k", 1, 5) == 3
    desk.spend(0, "k", least=1, most=5)
    assert desk.wait(60_000) == {}


def test_a_bucket_that_holds_nothing_lets_through_at_its_rate():
    desk = BankDesk(k=(10, 0))
    for _ in range(3):
        assert desk.ask(0, "k", 1) == 1
        desk.spend(0, "k")
        assert desk.ask(0, "k", 1) == 0
        assert desk.wait(99) == {}
        assert desk.wait(1) == {(0, "k"): 1}
        desk.spend(0, "k")
        desk.wait(100)


# --- several shards ---------------------------------------------------------------------------------------------------


def test_who_asks_together_shares():
    desk = BankDesk(k=(10, 20))
    for shard in range(4):
        desk.say(shard, "k", 1, 100)
    assert desk.serve() == {(shard, "k"): 5 for shard in range(4)}


def test_what_one_does_not_need_is_shared_by_the_others():
    desk = BankDesk(k=(10, 20))
    for shard, most in enumerate((2, 100, 100)):
        desk.say(shard, "k", 1, most)
    assert desk.serve() == {(0, "k"): 2, (1, "k"): 9, (2, "k"): 9}


def test_shards_take_turns():
    desk = BankDesk(k=(200, 1))
    served = []
    for shard in range(3):
        desk.say(shard, "k", 1, 1000)
    came = desk.serve()
    for _ in range(30):
        ((shard, _),) = came
        served.append(shard)
        desk.spend(shard, "k", least=1, most=1000)
        came = desk.wait(5)
    assert served == [0, 1, 2] * 10


def test_small_wants_do_not_starve_a_large_one():
    desk = BankDesk(k=(100, 10))
    desk.ask(0, "k", 1, 10)
    desk.spend(0, "k", least=1, most=1)
    desk.say(1, "k", 10, 10)
    came = {}
    for _ in range(30):
        for place, gain in desk.wait(10).items():
            came[place] = came.get(place, 0) + gain
            desk.spend(place[0], "k", least=1 if place[0] == 0 else 10, most=10)
    assert came[0, "k"] + came[1, "k"] <= 30
    assert came[1, "k"] >= 20


def test_a_scarce_bucket_is_served_in_handfuls():
    desk = BankDesk(k=(10_000, 1000))
    desk.ask(0, "k", 1, 1000)
    desk.spend(0, "k", least=1, most=1000)
    assert desk.bank.next_due(desk.now_ms) == HANDFUL_MS
    assert desk.wait(HANDFUL_MS) == {(0, "k"): 10 * HANDFUL_MS}


def test_a_bucket_that_has_enough_is_served_at_once():
    desk = BankDesk(k=(10_000, 1000))
    for _ in range(10):
        assert desk.ask(0, "k", 1, 1) == 1
        desk.spend(0, "k")


def test_all_that_a_shard_gets_is_in_one_frame():
    desk = BankDesk(a=(10, 10), b=(10, 10))
    desk.say(0, "a", 1, 2)
    desk.say(0, "b", 1, 2)
    desk.say(1, "a", 1, 2)
    told = desk.bank.serve(desk.now_ms)
    assert [(grants.shard, len(grants.grants)) for grants in told] == [(0, 2), (1, 1)]


# --- sets of keys -----------------------------------------------------------------------------------------------------


def test_a_set_is_granted_whole_or_not_at_all():
    desk = BankDesk(a=(10, 10), b=(10, 3))
    assert desk.ask(0, "a b", 1, 10) == 3
    assert (desk.level("a"), desk.level("b")) == (7, 0)
    desk.spend(0, "a b")
    assert desk.ask(0, "a b", 1, 10) == 0
    assert desk.level("a") == 7


def test_waiting_for_an_empty_bucket_holds_up_no_account_at_a_full_one():
    desk = BankDesk(a=(0, 1), b=(10, 1))
    desk.ask(0, "a", 1)
    desk.ask(1, "a b", 1)
    for _ in range(10):
        assert desk.ask(2, "b", 1) == 1
        desk.spend(2, "b")
        desk.wait(100)


def test_keys_without_a_limit_restrict_nothing():
    desk = BankDesk(a=(10, 5))
    assert desk.ask(0, "b c", 1, 1000) == 1000
    assert desk.ask(0, "a b", 1, 1000) == 5


@pytest.mark.parametrize(("rate_a", "rate_b"), [(100, 100), (100, 7), (7, 100), (1, 1)])
def test_two_busy_buckets_do_not_send_a_set_to_and_fro_for_ever(rate_a: float, rate_b: float):
    desk = BankDesk(a=(rate_a, 1), b=(rate_b, 1))
    wants = [(0, "a"), (1, "b"), (2, "a b"), (3, "a"), (4, "b")]
    for shard, keys in wants:
        desk.say(shard, keys, 1, 1)
    counts = dict.fromkeys(wants, 0)
    for _ in range(200):
        for shard, keys in desk.wait(round(200 / min(rate_a, rate_b))):
            counts[shard, keys] += 1
            desk.spend(shard, keys, least=1, most=1)
    assert counts[2, "a b"] >= 5
    assert min(counts.values()) >= 5


def test_crossed_holds_do_not_lock_each_other_out():
    desk = BankDesk(a=(100, 1), b=(100, 1))
    desk.ask(0, "a", 1)
    desk.ask(1, "b", 1)
    desk.say(2, "a b", 1, 1)
    desk.say(3, "b a", 1, 1)
    desk.spend(0, "a")
    desk.wait(10)
    desk.spend(1, "b")
    assert desk.wait(20) == {(2, "a b"): 1}
    desk.spend(2, "a b")
    assert desk.wait(20) == {(3, "b a"): 1}


# --- limits that change -----------------------------------------------------------------------------------------------


def test_a_bucket_that_is_learnt_at_the_start_is_empty():
    desk = BankDesk()
    desk.bank.limit("k", limit(10, 20), desk.now_ms, full=False)
    assert desk.ask(0, "k", 1, 20) == 0
    assert desk.wait(100) == {(0, "k"): 1}


def test_a_new_limit_counts_what_is_out():
    desk = BankDesk()
    desk.ask(0, "k", 1, 15)
    desk.bank.limit("k", limit(10, 20), desk.now_ms, full=True)
    check(desk.bank)
    assert desk.level("k") == 5
    desk.bank.limit("k", None, desk.now_ms, full=True)
    desk.bank.limit("k", limit(10, 2), desk.now_ms, full=True)
    assert desk.level("k") == -13
    desk.spend(0, "k")
    check(desk.bank)


def test_a_changed_bucket_keeps_its_tokens_clamped_to_the_burst():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.spend(0, "k")
    desk.bank.limit("k", limit(1, 50), desk.now_ms, full=True)
    assert desk.level("k") == 15
    desk.bank.limit("k", limit(1, 3), desk.now_ms, full=True)
    assert desk.level("k") == 3


def test_a_new_rate_holds_from_now_on():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    desk.spend(0, "k", least=1, most=1)
    desk.wait(50)
    desk.bank.limit("k", limit(100, 20), desk.now_ms, full=True)
    assert desk.wait(4) == {}
    assert desk.wait(1) == {(0, "k"): 1}


def test_a_bucket_that_nothing_was_drawn_from_stays_full_when_it_changes():
    desk = BankDesk(k=(1, 1))
    desk.bank.limit("k", limit(1, 5), desk.now_ms, full=True)
    assert desk.ask(0, "k", 1, 9) == 5
    desk.bank.limit("k", limit(1, 50), desk.now_ms, full=True)
    assert desk.level("k") == 0


def test_the_same_limit_again_changes_nothing():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    desk.bank.limit("k", limit(10, 20), desk.now_ms, full=True)
    assert desk.level("k") == 0


def test_without_its_limit_a_waiting_want_is_granted():
    desk = BankDesk(k=(1, 1), other=(1, 1))
    desk.ask(0, "k", 1)
    desk.ask(1, "k", 1, 50)
    desk.ask(2, "k other", 1, 50)
    desk.bank.limit("k", None, desk.now_ms, full=True)
    assert desk.serve() == {(1, "k"): 50, (2, "k other"): 1}
    desk.bank.limit("k", None, desk.now_ms, full=True)
    check(desk.bank)


def test_a_limit_goes_while_its_tokens_are_held_for_an_account():
    desk = BankDesk(a=(100, 1), b=(100, 1))
    desk.ask(0, "b", 1)
    desk.spend(0, "b")
    assert desk.ask(1, "a b", 1) == 0
    assert desk.bank.buckets["a"].holds
    desk.bank.limit("a", None, desk.now_ms, full=True)
    check(desk.bank)
    assert desk.wait(10) == {(1, "a b"): 1}


# --- being told -------------------------------------------------------------------------------------------------------


def test_an_account_that_has_to_wait_gets_the_time():
    desk = BankDesk(k=(2, 2))
    desk.ask(0, "k", 2)
    desk.spend(0, "k", least=1, most=2)
    desk.serve()
    assert desk.waits[0, ("k",)] == 500
    desk.say(1, "k", 2, 2)
    desk.serve()
    assert desk.waits[1, ("k",)] == 1500
    desk.wait(500)
    assert desk.waits[0, ("k",)] == 0


def test_an_account_that_waits_shortly_gets_only_the_tokens():
    desk = BankDesk(k=(200, 1))
    desk.ask(0, "k", 1)
    desk.spend(0, "k", least=1, most=1)
    assert desk.bank.serve(desk.now_ms) == []
    assert desk.wait(5) == {(0, "k"): 1}


def test_a_wait_that_becomes_longer_is_sent():
    desk = BankDesk(k=(10, 1))
    desk.ask(0, "k", 1)
    desk.spend(0, "k", least=1, most=1)
    desk.serve()
    assert desk.waits[0, ("k",)] == 100
    desk.bank.limit("k", limit(20, 1), desk.now_ms, full=True)
    assert desk.bank.serve(desk.now_ms) == []
    desk.bank.limit("k", limit(1, 1), desk.now_ms, full=True)
    desk.serve()
    assert desk.waits[0, ("k",)] == 1000


def test_repeating_a_want_is_answered_but_not_at_once():
    """Else two who answer each other's repetitions would never stop."""
    desk = BankDesk(k=(1, 1))
    desk.ask(0, "k", 1)
    desk.spend(0, "k", least=1, most=1)
    desk.serve()
    desk.say(0, "k", 1, 1)
    assert desk.bank.serve(desk.now_ms) == []
    desk.now_ms += REMIND_MS
    desk.say(0, "k", 1, 1)
    (grants,) = desk.bank.serve(desk.now_ms)
    assert grants.grants[0].wait_ms == 1000 - REMIND_MS


def test_a_grant_that_was_lost_is_sent_again():
    desk = BankDesk(k=(10, 20))
    desk.say(0, "k", 1, 7)
    desk.bank.serve(desk.now_ms)
    desk.say(0, "k", 1, 7)
    assert desk.serve() == {}
    desk.now_ms += REMIND_MS
    desk.say(0, "k", 1, 7)
    assert desk.serve() == {(0, "k"): 7}


def test_grants_come_with_the_levels_of_their_buckets():
    desk = BankDesk(a=(10, 20), b=(5, 7))
    desk.ask(0, "a b free", 1, 3)
    assert desk.levels == {"a": (17 * TOKEN, 10_000, 20 * TOKEN), "b": (4 * TOKEN, 5_000, 7 * TOKEN)}


def test_an_older_place_in_line_is_kept_when_a_want_changes():
    desk = BankDesk(k=(10, 1))
    desk.ask(0, "k", 1)
    desk.say(1, "k", 1, 1)
    desk.say(2, "k", 1, 1)
    desk.say(1, "k", 1, 5)
    desk.spend(0, "k")
    assert desk.wait(100) == {(1, "k"): 1}


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_tokens_of_an_ended_session_count_as_spent():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    desk.ask(1, "k", 1, 20)
    desk.bank.close(0, desk.now_ms)
    check(desk.bank)
    assert desk.level("k") == 0
    assert desk.wait(100) == {(1, "k"): 1}


def test_what_an_ended_session_still_says_is_not_heard():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.bank.close(0, desk.now_ms)
    desk.spend(0, "k", least=1, most=1)
    desk.give_back(0, "k")
    assert desk.serve() == {}
    assert desk.level("k") == 15
    desk.renew(0)
    assert desk.ask(0, "k", 1, 1) == 1


def test_a_new_session_ends_the_old_one():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.renew(0)
    assert desk.ask(0, "k", 1, 1) == 1
    assert desk.bank.buckets["k"].outstanding == TOKEN


def test_sessions_of_two_lives_of_a_shard_are_two_though_they_have_one_number():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.bank.ask(Tokens(0, desk.session, [TokenWant(["k"], TOKEN, TOKEN, 0, 0)]), EPOCH + 1, desk.now_ms)
    (grants,) = desk.bank.serve(desk.now_ms)
    check(desk.bank)
    assert grants.grants[0].granted == TOKEN


def test_who_is_lost_holds_nothing_and_waits_for_nothing():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 20)
    desk.ask(1, "k", 1, 1)
    desk.bank.suspend([0, 7], desk.now_ms)
    check(desk.bank)
    assert desk.wait(100) == {(1, "k"): 1}
    desk.bank.suspend([1], desk.now_ms)
    desk.bank.suspend([1], desk.now_ms)
    desk.now_ms += 10_000
    assert desk.level("k") == 20


def test_who_returns_still_holds_what_it_held():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.bank.suspend([0], desk.now_ms)
    desk.now_ms += 10_000
    assert desk.level("k") == 20
    desk.bank.resume([0], desk.now_ms)
    check(desk.bank)
    assert desk.level("k") == 15
    desk.spend(0, "k", 2)
    desk.give_back(0, "k")
    assert desk.level("k") == 18


def test_what_a_lost_shard_says_is_noted_but_not_granted():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.bank.suspend([0], desk.now_ms)
    desk.spend(0, "k", 4, least=2, most=3)
    assert desk.serve() == {}
    desk.bank.resume([0], desk.now_ms)
    assert desk.bank.buckets["k"].outstanding == TOKEN
    assert desk.ask(0, "k", 2, 3) == 2


def test_a_new_limit_does_not_count_what_the_lost_hold():
    desk = BankDesk()
    desk.ask(0, "k", 1, 5)
    desk.bank.suspend([0], desk.now_ms)
    desk.bank.limit("k", limit(10, 20), desk.now_ms, full=True)
    assert desk.level("k") == 20
    desk.bank.resume([0], desk.now_ms)
    check(desk.bank)
    assert desk.level("k") == 15


def test_a_session_that_was_not_suspended_is_not_resumed():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.bank.resume([0, 9], desk.now_ms)
    check(desk.bank)
    desk.bank.close(0, desk.now_ms)
    desk.bank.resume([0], desk.now_ms)
    desk.bank.suspend([0], desk.now_ms)
    check(desk.bank)
    assert desk.level("k") == 15


# --- odd totals -------------------------------------------------------------------------------------------------------


def test_a_shard_that_forgot_an_account_starts_it_anew():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.spend(0, "k", 2)
    del desk.purses[0, ("k",)]
    desk.say(0, "k", 1, 4)
    (grants,) = desk.bank.serve(desk.now_ms)
    assert grants.grants[0].granted == 4 * TOKEN
    assert desk.bank.buckets["k"].outstanding == 4 * TOKEN
    assert desk.level("k") == 11


def test_a_settled_account_may_be_forgotten_here():
    desk = BankDesk(k=(10, 20))
    desk.ask(0, "k", 1, 5)
    desk.spend(0, "k", 4)
    desk.now_ms += IDLE_MS
    desk.bank.sweep(desk.now_ms)
    assert desk.bank.sessions[0].accounts
    desk.give_back(0, "k")
    desk.now_ms += IDLE_MS
    desk.bank.sweep(desk.now_ms)
    assert not desk.bank.sessions[0].accounts
    assert desk.ask(0, "k", 1, 2) == 2


def test_more_than_was_granted_is_charged():
    desk = BankDesk(k=(10, 20))
    desk.purse(0, "k").granted = 50 * TOKEN
    desk.say(0, "k")
    desk.spend(0, "k", 50)
    assert desk.level("k") == -30
    assert desk.bank.buckets["k"].outstanding == 0


@pytest.mark.parametrize("amount", [-(2**63), -1, 0, 2**62, 2**64 - 1])
@pytest.mark.parametrize("field", ["least", "most", "consumed", "returned"])
def test_absurd_numbers_do_no_harm(field: str, amount: int):
    desk = BankDesk(k=(10, 20))
    want = TokenWant(["k"], TOKEN, TOKEN, 0, 0)
    setattr(want, field, amount)
    for _ in range(2):
        desk.bank.ask(Tokens(0, 1, [want]), EPOCH, desk.now_ms)
        desk.now_ms += 1000
        assert all(encode_body(grants) for grants in desk.bank.serve(desk.now_ms))
        check(desk.bank)
    desk.ask(1, "k", 1)
    check(desk.bank)


def test_keys_named_twice_count_once():
    desk = BankDesk(k=(10, 20))
    want = TokenWant(["k", "k"], TOKEN, 5 * TOKEN, 0, 0)
    desk.bank.ask(Tokens(0, 1, [want]), EPOCH, desk.now_ms)
    assert desk.serve() == {(0, "k"): 5}
    assert desk.level("k") == 15


def test_totals_stay_within_what_travels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_bank, "AMOUNT_MAX", 10 * TOKEN)
    desk = BankDesk(k=(1000, 100))
    for _ in range(3):
        desk.ask(0, "k", 4, 100)
        desk.spend(0, "k")
    assert desk.purse(0, "k").granted == 20 * TOKEN
    desk.renew(0)
    assert desk.ask(0, "k", 4) == 4
    assert AMOUNT_MAX < 2**63

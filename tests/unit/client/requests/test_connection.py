"""Greeting, correlation, deadlines, retries."""

import math

import pytest

from fila_cluster.errors import (
    FilaError,
    InvalidFrameError,
    OverloadedError,
    PayloadTooLargeError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from fila_proto_zmq import codec
from fila_proto_zmq.commands import (
    CLOSED,
    MARK,
    ClusterStatus,
    CreateQueue,
    DeleteQueue,
    Done,
    Enqueue,
    Enqueued,
    GetClusterStatus,
    GetQueueStats,
    GetSchedule,
    Hello,
    ListQueues,
    QueueList,
    QueueOptions,
    Receive,
    Redrive,
    Settle,
    Verb,
    Welcome,
)
from fila_proto_zmq.frames import REPLY, pack_header
from tests.unit.client.peer import ENDPOINT, WELCOME, Peer

REFUSED = ShardUnavailableError("down", retry_after=0.2, details={"refused": True})
LOST = ShardUnavailableError("lost", retry_after=0.2)


def ask(peer, command=None, key="q"):
    return peer.session.call(key, command or GetQueueStats(), peer.now)


# --- greeting ---------------------------------------------------------------------------------------------------------


def test_it_greets_first_and_holds_back_everything_else():
    peer = Peer(connected=False)
    call = ask(peer, ListQueues(), "")
    (hello,) = peer.sent()
    assert hello.command == Hello([1], "test")
    peer.reply(hello, Welcome(1, "0.0", 1, 15_000))
    (asked,) = peer.sent()
    assert asked.command == ListQueues()
    peer.reply(asked, QueueList([]))
    assert call.outcome() == QueueList([])


def test_a_broker_of_another_version_fails_every_call():
    peer = Peer(connected=False)
    early = ask(peer)
    (hello,) = peer.sent()
    peer.refuse(hello, UnsupportedVersionError("only 9 here"))
    late = ask(peer)
    for call in (early, late):
        with pytest.raises(UnsupportedVersionError, match="only 9 here"):
            call.outcome()
    assert peer.sent() == []


def test_a_refused_greeting_is_sent_again_with_the_first_call_after_a_while():
    peer = Peer(connected=False)
    (hello,) = peer.sent()
    peer.refuse(hello, UnauthenticatedError("not one of this cluster"))
    peer.advance(0.9)
    with pytest.raises(UnauthenticatedError, match="not one of this cluster"):
        ask(peer).outcome()
    peer.advance(0.1)
    assert peer.sent() == [], "not without a call"
    call = ask(peer, ListQueues(), "")
    (again,) = peer.sent()
    assert again.command == hello.command
    peer.refuse(again, UnauthenticatedError("not yet"))
    with pytest.raises(UnauthenticatedError, match="not yet"):
        call.outcome()
    peer.advance(1.0)
    call = ask(peer, ListQueues(), "")
    peer.reply(peer.one(Hello), Welcome(1, "0.0", 1, 15_000))
    peer.reply(peer.one(ListQueues), QueueList([]))
    assert call.outcome() == QueueList([])


def test_after_a_reconnection_it_tries_again():
    peer = Peer(connected=False)
    (hello,) = peer.sent()
    peer.refuse(hello, UnsupportedVersionError("only 9 here"))
    peer.session.disconnected(peer.now)
    call = ask(peer)
    (asked,) = peer.welcome()
    peer.reply(asked, Done())
    assert call.done


def test_a_greeting_may_be_refused_for_a_moment():
    peer = Peer(connected=False)
    (hello,) = peer.sent()
    peer.refuse(hello, OverloadedError("busy", details={"refused": True}))
    peer.advance(1.0)
    assert isinstance(peer.one(Hello).command, Hello)


# --- the session ------------------------------------------------------------------------------------------------------

SECRET = bytes(range(1, 33))
TAG = 0x01020304


def in_session() -> Peer:
    peer = Peer(connected=False)
    peer.reply(peer.one(Hello), Welcome(1, "0.0", 1, 15_000, session=SECRET))
    return peer


def test_it_brings_its_secret_to_each_later_connection():
    peer = in_session()
    peer.session.disconnected(peer.now)
    assert peer.one(Hello).command == Hello([1], "test", SECRET)


def test_requests_name_the_session_and_greetings_do_not():
    peer = in_session()
    ask(peer)
    (asked,) = peer.sent()
    assert asked.header.epoch == TAG
    peer.session.disconnected(peer.now)
    assert peer.one(Hello).header.epoch == 0


def test_a_broker_that_gives_no_secret_is_asked_without_a_tag():
    peer = Peer()
    ask(peer)
    (asked,) = peer.sent()
    assert asked.header.epoch == 0


def test_a_broker_that_has_forgotten_it_is_greeted_and_asked_again():
    peer = in_session()
    calls = [ask(peer), ask(peer)]
    for sent in peer.sent():
        peer.refuse(sent, ShardUnavailableError("greet", details={"refused": True, "greet": True}))
    hello = peer.one(Hello)
    assert hello.command == Hello([1], "test", SECRET)
    peer.reply(hello, Welcome(1, "0.0", 1, 15_000, session=SECRET))
    peer.advance(1.0)
    again = peer.sent()
    assert [sent.header.epoch for sent in again] == [TAG, TAG]
    for sent in again:
        peer.reply(sent, Done())
    assert all(call.done for call in calls)


def test_a_mark_means_nothing_to_it():
    peer = Peer()
    peer.session.arrived([pack_header(MARK), b"", b"\x90"], peer.now)
    assert peer.sent() == []


def test_a_session_that_was_closed_is_greeted_for_anew_and_harmless_calls_are_sent_again():
    peer = Peer()
    question, enqueue = ask(peer, ListQueues(""), ""), ask(peer, Enqueue([b"\0\0\0\0"]))
    first = peer.sent()
    peer.session.arrived([pack_header(CLOSED), b"", b"\x90"], peer.now)
    again = peer.welcome()
    assert [sent.header.request for sent in again] == [first[0].header.request]
    assert isinstance(enqueue.error, ShardUnavailableError)
    assert not question.done


# --- answers ----------------------------------------------------------------------------------------------------------


def test_answers_find_their_calls_in_any_order():
    peer = Peer()
    calls = [ask(peer, ListQueues(str(number)), "") for number in range(3)]
    frames = peer.sent()
    for frame in reversed(frames):
        assert not calls[frames.index(frame)].done
        peer.reply(frame, QueueList([]))
    assert all(call.done for call in calls)


def test_an_error_is_raised_as_what_it_is():
    peer = Peer()
    call = ask(peer)
    peer.refuse(peer.one(GetQueueStats), QueueNotFoundError("no queue 'q'", details={"a": 1}))
    with pytest.raises(QueueNotFoundError, match="no queue 'q'") as caught:
        call.outcome()
    assert caught.value.details == {"a": 1}


def test_a_body_that_does_not_fit_fails_its_call():
    peer = Peer()
    call = ask(peer, ListQueues(), "")
    (sent,) = peer.sent()
    peer.session.arrived((pack_header(sent.header.opcode, sent.header.request, REPLY), b"", b"\xff"), peer.now)
    with pytest.raises(InvalidFrameError):
        call.outcome()


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"x" * 18, b"", b""],
        [pack_header(33)],
        [pack_header(33), b"q", b"\xff"],
        [pack_header(33), b"\xff", b"\x90"],
        [pack_header(99, 77, REPLY), b"", b""],
    ],
)
def test_garbage_is_dropped(parts):
    peer = Peer()
    peer.session.arrived(parts, peer.now)
    assert peer.sent() == []


def test_a_late_answer_disturbs_no_call():
    peer = Peer()
    call = ask(peer, ListQueues(), "")
    (sent,) = peer.sent()
    peer.advance(6)
    peer.sent()
    peer.reply(sent, QueueList([]))
    with pytest.raises(RequestTimeoutError):
        call.outcome()


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_call_without_an_answer_times_out_and_says_where_and_what():
    peer = Peer(timeout_s=2.0)
    call = ask(peer)
    peer.sent()
    assert peer.session.next_deadline() == peer.now + 2.0
    peer.advance(1.99)
    peer.sent()
    assert not call.done
    peer.advance(0.01)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match=rf"{ENDPOINT}.*GetQueueStats of queue 'q'.*2 s") as caught:
        call.outcome()
    assert caught.value.retryable
    assert caught.value.details == {"endpoint": ENDPOINT, "timeout": 2.0}


def test_a_call_about_a_schedule_says_so():
    assert str(ask(Peer(), GetSchedule(), "nightly")) == "GetSchedule of schedule 'nightly'"


def test_without_any_broker_it_says_what_to_do():
    peer = Peer(connected=False)
    call = ask(peer)
    peer.sent()
    peer.advance(5)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match=r"no broker answers at .*is `fila-cluster up` running there"):
        call.outcome()


def test_a_lost_broker_differs_from_one_that_never_was():
    peer = Peer()
    peer.session.disconnected(peer.now)
    call = ask(peer)
    peer.sent()
    peer.advance(5)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match="is lost and did not come back"):
        call.outcome()


def test_deadlines_cost_nothing_while_answers_come():
    """The bound is one timeout ahead; it does not move with every call."""
    peer = Peer()
    for _ in range(100):
        call = ask(peer, ListQueues(), "")
        (sent,) = peer.sent()
        peer.reply(sent, QueueList([]))
        assert call.done
        peer.advance(0.01)
    assert peer.session.next_deadline() == 1005.0
    peer.now = 1005.0
    assert peer.sent() == []
    assert peer.session.next_deadline() == math.inf


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [REFUSED, OverloadedError("busy", retry_after=0.2, details={"refused": True})])
def test_what_was_refused_before_any_work_is_retried(error):
    peer = Peer()
    pending = peer.enqueue("q")
    first = peer.one(Enqueue)
    peer.refuse(first, error)
    assert not pending.done
    assert peer.sent() == []
    peer.advance(0.2)
    again = peer.one(Enqueue)
    assert again == first
    peer.reply(again, Enqueued(0x7000, 1 << 63, 1))
    assert pending.outcome()


def test_retries_of_an_overloaded_broker_back_off_with_jitter():
    peer = Peer(timeout_s=60)
    ask(peer)
    (sent,) = peer.sent()
    delays = []
    for _ in range(7):
        peer.refuse(sent, OverloadedError("busy", details={"refused": True}))
        due = peer.session.next_deadline()
        delays.append(due - peer.now)
        peer.now = due
        (sent,) = peer.sent()
    assert all(
        0.5 * ceiling <= delay <= ceiling for delay, ceiling in zip(delays, [0.05, 0.1, 0.2, 0.4, 0.8, 1, 1], strict=True)
    )


def test_what_waits_for_a_worker_asks_again_within_a_share_of_the_time_that_it_was_away():
    peer = Peer(timeout_s=60)
    ask(peer)
    (sent,) = peer.sent()
    began = peer.now
    while peer.now < began + 10:
        peer.refuse(sent, REFUSED)
        due = peer.session.next_deadline()
        assert 0.199 <= due - peer.now <= max(0.201, min(1.001, 0.3 * (peer.now - began)))
        peer.now = due
        (sent,) = peer.sent()


def test_a_long_receive_waits_for_a_lost_broker_no_longer_than_other_calls():
    peer = Peer(timeout_s=2.0)
    receiving = peer.session.receive({"q": 1}, 3_600_000, peer.now)
    peer.one(Receive)
    peer.session.disconnected(peer.now)
    peer.advance(2.01)
    peer.sent()
    with pytest.raises(RequestTimeoutError, match="did not come back within the 2 s"):
        receiving.outcome()


def test_a_retry_that_is_not_answered_ends_in_time():
    peer = Peer(timeout_s=2.0)
    asked_at = peer.now
    call = ask(peer)
    peer.refuse(peer.one(GetQueueStats), REFUSED)
    peer.advance(0.2)
    peer.one(GetQueueStats)
    assert peer.session.next_deadline() <= asked_at + 2.0
    peer.advance(1.81)
    assert peer.sent() == []
    with pytest.raises(RequestTimeoutError):
        call.outcome()


def test_retries_end_with_the_timeout_and_the_broker_s_own_error():
    peer = Peer(timeout_s=2.0)
    call = ask(peer)
    while not call.done:
        for sent in peer.sent():
            peer.refuse(sent, REFUSED)
        peer.advance(0.05)
    assert peer.now < 1002.1
    with pytest.raises(ShardUnavailableError, match="down"):
        call.outcome()


def test_a_longer_wait_than_the_timeout_is_surfaced_at_once():
    peer = Peer()
    call = ask(peer)
    peer.refuse(peer.one(GetQueueStats), OverloadedError("busy", retry_after=60, details={"refused": True}))
    with pytest.raises(OverloadedError) as caught:
        call.outcome()
    assert caught.value.retry_after == 60


@pytest.mark.parametrize("command", [GetQueueStats(), ListQueues()])
def test_a_repeatable_call_is_repeated_when_its_worker_dies(command):
    peer = Peer()
    call = ask(peer, command)
    (sent,) = peer.sent()
    peer.refuse(sent, LOST)
    peer.advance(1)
    assert peer.sent() == [sent]
    assert not call.done


@pytest.mark.parametrize(
    "command",
    [CreateQueue(QueueOptions()), DeleteQueue(), Redrive(0), Enqueue([b"\0\0\0\0"])],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("loss", ["worker", "link"])
def test_a_call_that_may_have_been_done_is_surfaced(command, loss):
    peer = Peer()
    call = ask(peer, command)
    (sent,) = peer.sent()
    if loss == "worker":
        peer.refuse(sent, LOST)
    else:
        peer.session.disconnected(peer.now)
    with pytest.raises(ShardUnavailableError) as caught:
        call.outcome()
    assert caught.value.retryable
    assert not caught.value.details.get("refused")


@pytest.mark.parametrize("error", [FilaError("bug"), OverloadedError("no mark"), QueueNotFoundError("no")])
def test_other_errors_are_not_retried(error):
    peer = Peer()
    call = ask(peer)
    peer.refuse(peer.one(GetQueueStats), error)
    assert call.done


# --- losing the link --------------------------------------------------------------------------------------------------


def test_after_a_loss_what_may_be_repeated_is_sent_again_behind_the_greeting():
    peer = Peer()
    call = ask(peer)
    (sent,) = peer.sent()
    peer.session.disconnected(peer.now)
    later = ask(peer, ListQueues(), "")
    again, listing = peer.welcome()
    assert again == sent
    peer.reply(again, Done())
    peer.reply(listing, QueueList([]))
    assert call.done
    assert later.done


def test_a_refusal_of_an_earlier_attempt_sends_a_call_that_waits_for_the_greeting_once():
    """The session is the same, so the answer may come on the new link."""
    peer = Peer()
    call = ask(peer)
    (sent,) = peer.sent()
    peer.session.disconnected(peer.now)
    peer.refuse(sent, LOST)
    again = peer.welcome()
    peer.advance(2)
    assert [*again, *peer.sent(GetQueueStats)] == [sent]
    peer.reply(sent, Done())
    assert call.done


@pytest.mark.parametrize("connected", [False, True])
def test_a_loss_does_not_touch_what_was_not_sent(connected):
    """Because there was no broker, or because an idle client checks its link only with its next call."""
    peer = Peer(connected=connected)
    call = ask(peer, CreateQueue(QueueOptions()))
    peer.session.disconnected(peer.now)
    assert not call.done
    (sent,) = peer.welcome()
    peer.reply(sent, Done())
    call.outcome()


def test_a_welcome_to_an_older_greeting_is_not_believed():
    peer = Peer(connected=False)
    (old,) = peer.sent()
    peer.session.disconnected(peer.now)
    ask(peer)
    (new,) = peer.sent()
    peer.reply(old, Welcome(1, "0.0", 1, 15_000))
    assert peer.sent() == []
    peer.reply(new, Welcome(1, "0.0", 1, 15_000))
    assert len(peer.sent()) == 1


def test_a_forgotten_call_is_never_sent():
    peer = Peer(connected=False)
    call = ask(peer)
    peer.session.let_go(call)
    assert peer.welcome() == []


def test_what_would_cost_the_connection_is_refused_here():
    peer = Peer()
    pending = peer.enqueue("q", bytes(30 * 1024 * 1024))
    assert peer.sent() == []
    with pytest.raises(PayloadTooLargeError, match="max_payload_bytes") as caught:
        pending.outcome()
    assert caught.value.details == {"max_payload_bytes": 16 * 1024 * 1024}


def test_each_waiter_gets_an_exception_of_its_own():
    peer = Peer()
    calls = [ask(peer), ask(peer)]
    peer.session.fail_all(FilaError("over"))
    assert calls[0].error is not calls[1].error


def test_an_outcome_leaves_no_cycle():
    peer = Peer()
    call = ask(peer)
    peer.session.fail_all(FilaError("over"))
    with pytest.raises(FilaError, match="over"):
        call.outcome()
    assert call.error is None


def test_frames_are_kept_only_as_long_as_they_may_be_sent_again():
    peer = Peer()
    call = ask(peer, ListQueues(), "")
    (sent,) = peer.sent()
    assert codec.decode_body(ListQueues, call.frames[2]) == ListQueues()
    peer.reply(sent, QueueList([]))
    assert call.frames == []


# --- what is kept -----------------------------------------------------------------------------------------------------

KIB = 1024


def enqueues(peer, count, size_bytes=KIB):
    """Frames of their own."""
    pending = []
    for _ in range(count):
        pending.append(peer.enqueue("q", bytes(size_bytes)))
        peer.session.flush(peer.now)
    return pending


def test_what_timed_out_without_a_broker_is_not_kept():
    peer = Peer(connected=False)
    calls = enqueues(peer, 100)
    assert peer.session.kept_bytes > 100 * KIB
    (hello,) = peer.sent()
    peer.advance(5)
    peer.sent()
    peer.reply(hello, WELCOME)
    assert peer.sent() == []
    assert all(call.done for call in calls)
    assert peer.session.kept_bytes < 2 * KIB  # the greeting


def test_a_broker_that_reads_nothing_gets_no_more_than_the_pipe_holds():
    peer = Peer(pipe_bytes_max=10 * KIB)
    calls = enqueues(peer, 50)
    assert len(peer.sent(Enqueue)) == 6
    peer.advance(5)
    assert peer.sent(Enqueue) == []
    with pytest.raises(RequestTimeoutError, match="whether it was done is unknown"):
        calls[0].outcome()
    with pytest.raises(RequestTimeoutError, match="was not sent"):
        calls[-1].outcome()
    assert peer.session.kept_bytes < 12 * KIB


def test_an_answer_shows_that_all_before_it_has_left_the_pipe():
    peer = Peer(pipe_bytes_max=10 * KIB)
    enqueues(peer, 50)
    first = peer.sent(Enqueue)
    peer.reply(first[2], Enqueued(1, 1, 1))
    assert len(peer.sent(Enqueue)) == 3
    peer.reply(first[-1], Enqueued(1, 1, 1))
    assert len(peer.sent(Enqueue)) == 3


def test_when_all_that_was_sent_has_timed_out_the_probe_s_answer_shows_it():
    peer = Peer(pipe_bytes_max=10 * KIB)
    enqueues(peer, 50)
    (probe,) = peer.sent(GetClusterStatus)
    peer.advance(5)
    peer.sent()
    later = enqueues(peer, 2)
    assert peer.sent(Enqueue) == []
    peer.reply(probe, ClusterStatus("0.0", 1, []))
    assert len(peer.sent(Enqueue)) == len(later)


def test_where_answers_are_slow_the_router_is_asked_whether_it_reads():
    peer = Peer(pipe_bytes_max=10 * KIB)
    calls = enqueues(peer, 50)
    sent = 0
    while frames := peer.sent():
        (probe,) = [frame for frame in frames if isinstance(frame.command, GetClusterStatus)] or [None]
        sent += len(frames) - (probe is not None)
        if probe is not None:
            peer.reply(probe, ClusterStatus("0.0", 1, []))
    assert sent == len(calls)


def test_one_message_larger_than_the_pipe_still_goes():
    peer = Peer(pipe_bytes_max=10 * KIB)
    enqueues(peer, 3, 100 * KIB)
    first, probe = peer.sent()
    peer.reply(first, Enqueued(1, 1, 1))
    peer.reply(probe, ClusterStatus("0.0", 1, []))
    assert len(peer.sent(Enqueue)) == 1


def test_what_waits_goes_in_order():
    peer = Peer(pipe_bytes_max=10 * KIB)
    enqueues(peer, 8, 3 * KIB)
    ask(peer, ListQueues(), "")
    frames = peer.sent()
    seen = []
    while frames:
        seen += [frame for frame in frames if not isinstance(frame.command, GetClusterStatus)]
        last = frames[-1]
        peer.reply(last, ClusterStatus("0.0", 1, []) if isinstance(last.command, GetClusterStatus) else Enqueued(1, 1, 1))
        frames = peer.sent()
    requests = [frame.header.request for frame in seen]
    assert requests == sorted(requests)
    assert isinstance(seen[-1].command, ListQueues)


def test_beyond_the_bound_calls_are_refused_and_those_that_end_others_are_not():
    peer = Peer(connected=False, kept_bytes_max=100 * KIB)
    calls = enqueues(peer, 200)
    refused = [call for call in calls if call.done]
    assert 200 - 100 <= len(refused) < 200
    with pytest.raises(OverloadedError, match="keeps") as caught:
        refused[-1].outcome()
    assert caught.value.details["refused"] is True
    assert caught.value.retry_after
    assert not peer.session.call("q", Settle(Verb.ACK, [(7, [])]), peer.now).done
    assert peer.session.kept_bytes <= 102 * KIB


def test_a_new_link_finds_room_whatever_the_old_one_had_in_its_pipe():
    peer = Peer(pipe_bytes_max=10 * KIB)
    enqueues(peer, 50)
    peer.sent()
    peer.session.disconnected(peer.now)
    assert len([sent for sent in peer.welcome() if isinstance(sent.command, Enqueue)]) == 6

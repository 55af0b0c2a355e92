"""Ways that open, turn, retire and are lost: which way each call takes, in which order, and what its caller hears."""

import pytest

from fila_admission.refusals import interrupted, moved, unavailable
from fila_cluster.client.protocol.session import GREETING_LOOK_S
from fila_cluster.client.requests.connection import PLACEMENT_S
from fila_cluster.client.requests.open_calls import SWEEP_S_MIN
from fila_cluster.client.requests.routes import (
    LEAVING_S,
    NAMES_MAX,
    OPENING_S,
    RETRY_S_MAX,
    RETRY_S_MIN,
    STAY_S,
    TURNING_S,
    DirectWay,
    Way,
    WayState,
)
from fila_proto_zmq.commands import (
    CancelReceive,
    ClusterStatus,
    Delivered,
    Done,
    GetClusterStatus,
    GetPlacement,
    Goodbye,
    Heartbeat,
    Hello,
    ListQueues,
    Pause,
    Placement,
    QueueList,
    Receive,
    Subscribe,
    Subscribed,
    Welcome,
)
from fila_proto_zmq.errors import FilaError, ShardUnavailableError, UnsupportedVersionError
from fila_proto_zmq.frames import epoch_tag
from tests.unit.client.peer import batch, give_up
from tests.unit.client.requests.ways import SECRET, SHARDS, PeerCluster, Q, view

ONE, TWO = view("one"), view("two")


# --- which way ----------------------------------------------------------------------------------------------------------


def test_what_concerns_one_shard_goes_straight_and_the_rest_through_the_router() -> None:
    cluster = PeerCluster(ONE, TWO)
    one, two = cluster.open(Q[0]), cluster.open(Q[2])
    cluster.ask(Q[1])
    cluster.ask(Q[3])
    cluster.ask("", ListQueues(""))
    assert [sent.key for sent in cluster.by(one)] == [Q[1]]
    assert [sent.key for sent in cluster.by(two)] == [Q[3]]
    assert [type(sent.command) for sent in cluster.by_router()] == [ListQueues]


def test_a_direct_frame_names_the_epoch_of_its_shard_and_a_routed_one_the_session() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    cluster.ask(Q[1])
    cluster.ask(Q[2])
    assert [sent.header.epoch for sent in cluster.by(way)] == [epoch_tag((1 << 40) + 7)]
    assert [sent.header.epoch for sent in cluster.by_router()] == [int.from_bytes(SECRET[:4], "big")]


def test_without_a_placement_everything_goes_through_the_router() -> None:
    cluster = PeerCluster()
    cluster.ask(Q[0])
    assert cluster.wanted() == []
    assert len(cluster.by_router()) == 1


def test_calls_from_before_the_welcome_find_their_way_with_it() -> None:
    cluster = PeerCluster(ONE, greeted=False)
    hello = cluster.sent(Hello)
    cluster.ask(Q[0])
    cluster.ask(Q[2])
    cluster.reply(hello[0], Welcome(1, "0.0", SHARDS, 15_000, 1 << 20, SECRET, cluster.doors))
    (way,) = cluster.wanted()
    assert [sent.key for sent in cluster.by_router()] == [Q[2]]
    cluster.let_in(way)
    assert [sent.key for sent in cluster.by(way)] == [Q[0]]


def test_names_are_remembered_up_to_a_bound() -> None:
    cluster = PeerCluster(ONE)
    routes = cluster.session.routes
    for number in range(NAMES_MAX + 1):
        routes.shard(f"n{number}")
    assert len(routes.names) == 1


# --- opening ------------------------------------------------------------------------------------------------------------


def test_calls_wait_for_a_way_that_opens_and_leave_in_order() -> None:
    cluster = PeerCluster(ONE)
    calls = [cluster.ask(queue) for queue in (Q[0], Q[1], Q[0])]
    (way,) = cluster.wanted()
    assert cluster.by(way) == cluster.by_router() == []
    cluster.let_in(way)
    sent = cluster.by(way)
    assert [each.header.request for each in sent] == [call.request for call in calls]
    assert cluster.wanted() == []


@pytest.mark.parametrize("stage", ["connecting", "greeting"])
def test_a_door_that_does_not_answer_is_given_up_soon_and_its_calls_go_through_the_router(stage: str) -> None:
    cluster = PeerCluster(ONE)
    calls = [cluster.ask(Q[0]) for _ in range(3)]
    (way,) = cluster.wanted()
    if stage == "greeting":
        cluster.banner(way)
        assert [type(sent.command) for sent in cluster.by(way)] == [Hello]
    cluster.advance(OPENING_S - 0.01)
    assert cluster.by_router() == []
    assert cluster.session.next_deadline() <= cluster.now + 0.011
    cluster.advance(0.02)
    assert [sent.header.request for sent in cluster.by_router()] == [call.request for call in calls]
    assert cluster.unwanted() == [way]
    assert way.state == WayState.CLOSED


def test_a_door_that_cannot_be_reached_is_tried_again_ever_later() -> None:
    cluster = PeerCluster(ONE)
    pauses: list[float] = []
    for _ in range(9):
        cluster.ask(Q[0])
        (way,) = cluster.wanted()
        cluster.lose(way)
        lost_at = cluster.now
        while True:
            for sent in cluster.by_router():
                cluster.answer(cluster.session.routes.router, sent, Done())
            cluster.ask(Q[0])
            if way.state == WayState.OPENING:
                break
            cluster.advance(0.5)
        pauses.append(cluster.now - lost_at)
        cluster.session.routes.wanted.clear()
        cluster.lose(way)
        way.failures -= 1
        cluster.advance(RETRY_S_MAX)
        for sent in cluster.by_router():
            cluster.answer(cluster.session.routes.router, sent, Done())
    assert pauses[:4] == [RETRY_S_MIN, 2 * RETRY_S_MIN, 4 * RETRY_S_MIN, 8 * RETRY_S_MIN]
    assert pauses[-1] == RETRY_S_MAX


def test_a_welcome_that_comes_late_opens_nothing() -> None:
    cluster = PeerCluster(ONE)
    cluster.ask(Q[0])
    (way,) = cluster.wanted()
    cluster.banner(way)
    (hello,) = cluster.by(way)
    cluster.advance(OPENING_S + 0.01)
    assert len(cluster.by_router()) == 1
    cluster.answer(way, hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    assert way.state == WayState.CLOSED
    cluster.ask(Q[0])
    assert len(cluster.by_router()) == 1


def test_the_plate_of_another_door_ends_the_connection() -> None:
    """Another process has the port by now."""
    cluster = PeerCluster(ONE)
    cluster.ask(Q[0])
    (way,) = cluster.wanted()
    cluster.banner(way, b"another")
    assert way.state == WayState.CLOSED
    assert cluster.unwanted() == [way]
    assert len(cluster.by_router()) == 1
    assert cluster.by(way) == [], "no secret for another door"


def test_a_door_that_refuses_the_greeting_is_left() -> None:
    cluster = PeerCluster(ONE)
    cluster.ask(Q[0])
    (way,) = cluster.wanted()
    cluster.banner(way)
    (hello,) = cluster.by(way)
    cluster.answer(way, hello, UnsupportedVersionError("no"))
    assert way.state == WayState.CLOSED
    assert len(cluster.by_router()) == 1


def test_a_session_whose_way_opens_looks_for_it_also_if_no_caller_waits() -> None:
    """The heartbeat thread of a blocking client."""
    cluster = PeerCluster(ONE)
    cluster.ask(Q[0])
    assert cluster.session.heartbeat_at == cluster.now + GREETING_LOOK_S
    (way,) = cluster.wanted()
    cluster.let_in(way)
    assert cluster.session.heartbeat_at > cluster.now + GREETING_LOOK_S


# --- retired ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaves_gets_nothing_more_and_answers_what_it_has() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    before = cluster.ask(Q[0])
    (sent,) = cluster.by(way)
    cluster.banner(way, b"")
    after = cluster.ask(Q[0])
    assert cluster.by(way) == []
    assert [each.header.request for each in cluster.by_router()] == [after.request]
    assert cluster.unwanted() == []
    cluster.answer(way, sent, Done())
    assert before.done
    assert before.error is None
    assert cluster.unwanted() == [way]


def test_a_retired_way_without_calls_is_closed_at_once() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    cluster.banner(way, b"")
    assert cluster.unwanted() == [way]
    assert way.pipe_bytes == 0


def test_a_way_that_is_retired_while_it_opens_is_not_opened_by_the_welcome() -> None:
    """The worker leaves between the banner and its answer to the greeting."""
    cluster = PeerCluster(ONE)
    call = cluster.ask(Q[0])
    (way,) = cluster.wanted()
    cluster.banner(way)
    (hello,) = cluster.by(way)
    cluster.banner(way, b"")
    assert [sent.header.request for sent in cluster.by_router()] == [call.request]
    cluster.answer(way, hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    assert way.state == WayState.RETIRED
    assert not way.open
    cluster.ask(Q[0])
    assert cluster.by(way) == []
    assert len(cluster.by_router()) == 1
    assert way in cluster.unwanted()


@pytest.mark.parametrize("repeatable", [True, False])
def test_calls_that_a_leaving_worker_never_answers_end_after_a_while(*, repeatable: bool) -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    call = cluster.ask(Q[0], Heartbeat() if repeatable else Pause())
    cluster.by(way)
    cluster.banner(way, b"")
    cluster.advance(LEAVING_S - 0.01)
    assert cluster.by_router() == []
    cluster.advance(0.02)
    assert len(cluster.by_router()) == repeatable
    assert call.done is not repeatable
    assert cluster.session.routes.leaving == []


# --- lost ---------------------------------------------------------------------------------------------------------------


def test_what_was_under_way_on_a_lost_connection_is_repeated_where_that_is_safe() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    safe, unsafe = cluster.ask(Q[0]), cluster.ask(Q[0], Pause())
    assert len(cluster.by(way)) == 2
    cluster.lose(way)
    assert [sent.header.request for sent in cluster.by_router()] == [safe.request]
    assert isinstance(unsafe.error, ShardUnavailableError)
    assert "refused" not in unsafe.error.details


def test_what_had_not_left_goes_another_way_whatever_it_is() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    calls = [cluster.ask(Q[0], Pause()) for _ in range(3)]
    cluster.lose(way)
    assert [sent.header.request for sent in cluster.by_router()] == [call.request for call in calls]


def test_what_is_sent_again_keeps_its_order_with_what_waited_behind_it() -> None:
    cluster = PeerCluster(ONE, pipe_bytes_max=1500)
    way = cluster.open(Q[0])
    calls = [cluster.ask(Q[0]) for _ in range(6)]
    assert way.held
    cluster.by(way)
    cluster.lose(way)
    order = []
    while sent := cluster.by_router():
        for each in sent:
            if isinstance(each.command, GetClusterStatus):
                cluster.answer(cluster.session.routes.router, each, ClusterStatus("0", SHARDS, []))
            else:
                order.append(each.header.request)
                cluster.answer(cluster.session.routes.router, each, Done())
    assert order == [call.request for call in calls]
    assert all(call.done and call.error is None for call in calls)


def test_an_answer_of_the_way_that_a_call_has_left_is_ignored() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    call = cluster.ask(Q[0])
    (sent,) = cluster.by(way)
    cluster.lose(way)
    (again,) = cluster.by_router()
    cluster.answer(way, sent, Done())
    assert not call.done
    cluster.answer(cluster.session.routes.router, again, Done())
    assert call.done


def test_a_lost_connection_is_made_again_after_a_pause() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    cluster.lose(way)
    cluster.ask(Q[0])
    (sent,) = cluster.by_router()
    cluster.answer(cluster.session.routes.router, sent, Done())
    assert cluster.wanted() == []
    cluster.advance(RETRY_S_MIN)
    cluster.open(Q[0])
    assert way.state == WayState.OPEN


def test_the_loss_of_the_router_does_not_disturb_a_direct_way() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    call = cluster.ask(Q[0])
    (sent,) = cluster.by(way)
    cluster.lose_router()
    cluster.answer(way, sent, Done())
    assert call.done
    cluster.ask(Q[0])
    assert len(cluster.by(way)) == 1


def test_a_router_that_knows_no_worker_yet_retires_the_ways_and_their_calls_are_answered() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    call = cluster.ask(Q[0])
    (sent,) = cluster.by(way)
    cluster.lose_router()
    cluster.doors = []
    cluster.greet()
    assert way.state == WayState.RETIRED
    cluster.answer(way, sent, Done())
    assert call.error is None
    cluster.place(ONE)
    again = cluster.open(Q[0])
    assert again is not way


def test_a_door_that_is_placed_again_while_its_earlier_way_still_leaves() -> None:
    """The router took the worker for lost, and it came back: both ways count until the first is gone."""
    cluster = PeerCluster(ONE)
    first = cluster.open(Q[0])
    cluster.ask(Q[0])
    (sent,) = cluster.by(first)
    cluster.place()
    cluster.place(ONE)
    second = cluster.open(Q[0])
    assert second is not first
    assert cluster.session.kept_bytes > 0
    cluster.answer(first, sent, Done())
    cluster.advance(LEAVING_S)
    cluster.by_router()
    assert cluster.session.routes.leaving == []
    assert cluster.session.kept_bytes == 0


def test_an_end_of_all_calls_leaves_no_shard_waiting_for_them() -> None:
    cluster = PeerCluster()
    cluster.ask(Q[0])
    cluster.by_router()
    cluster.session.fail_all(FilaError("the end"))
    cluster.check()
    cluster.place(ONE)
    cluster.open(Q[0])


# --- turning ------------------------------------------------------------------------------------------------------------


def turning() -> tuple[PeerCluster, DirectWay, list[object]]:
    """A call under way through the router when a door appears."""
    cluster = PeerCluster()
    cluster.ask(Q[0])
    routed = cluster.by_router()
    cluster.place(ONE)
    cluster.ask(Q[1])
    (way,) = cluster.wanted()
    cluster.let_in(way)
    for sent in cluster.by(way):
        cluster.answer(way, sent, Done())
    return cluster, way, routed


def test_a_shard_turns_when_its_calls_on_the_other_way_are_answered() -> None:
    cluster, way, (routed,) = turning()
    calls = [cluster.ask(Q[0]) for _ in range(3)]
    assert cluster.by(way) == cluster.by_router() == []
    cluster.answer(cluster.session.routes.router, routed, Done())
    assert [sent.header.request for sent in cluster.by(way)] == [call.request for call in calls]


def test_another_shard_of_that_worker_need_not_turn() -> None:
    cluster, way, _ = turning()
    cluster.ask(Q[1])
    assert [sent.key for sent in cluster.by(way)] == [Q[1]]


def test_a_call_that_waits_by_design_does_not_keep_its_shard_from_turning() -> None:
    cluster = PeerCluster()
    cluster.ask(Q[0], Receive(1, 60_000))
    cluster.by_router()
    cluster.place(ONE)
    cluster.open(Q[0])


def test_a_shard_that_cannot_turn_stays_on_its_way_for_a_while() -> None:
    cluster, way, (routed,) = turning()
    calls = [cluster.ask(Q[0]) for _ in range(2)]
    cluster.advance(TURNING_S - 0.01)
    assert cluster.by_router() == []
    cluster.advance(0.02)
    assert [sent.header.request for sent in cluster.by_router()] == [call.request for call in calls]
    third = cluster.ask(Q[0])
    stay = cluster.by_router()
    assert [sent.header.request for sent in stay] == [third.request]
    for call, sent in ((third, stay[0]), *((None, each) for each in ())):
        cluster.answer(cluster.session.routes.router, sent, Done())
        assert call is not None
        assert call.done
    cluster.advance(STAY_S)
    for request in (routed, *()):
        cluster.answer(cluster.session.routes.router, request, Done())
    cluster.ask(Q[0])
    assert cluster.by_router() == []
    assert cluster.by(way) == [], "its calls are under way there still"


@pytest.mark.parametrize("end", ["unplaced", "given up"])
def test_a_turn_that_comes_to_nothing_costs_nothing_afterwards(end: str) -> None:
    """No tick every few milliseconds for a shard that has no calls any more, or no door."""
    cluster, way, (routed,) = turning()
    call = cluster.ask(Q[0])
    if end == "unplaced":
        cluster.place()
        cluster.by_router()
    else:
        cluster.session._calls.forget(call)
    cluster.advance(TURNING_S + SWEEP_S_MIN)
    cluster.by_router()
    cluster.advance(SWEEP_S_MIN)
    cluster.by_router()
    assert cluster.session.next_deadline() > cluster.now + 10 * SWEEP_S_MIN
    assert way.held == {}
    cluster.answer(cluster.session.routes.router, routed, Done())


# --- moved --------------------------------------------------------------------------------------------------------------


def test_a_refusal_of_an_old_epoch_sends_the_call_through_the_router_and_asks_for_the_placement_once() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    calls = [cluster.ask(Q[0], Pause()) for _ in range(2)]
    for sent in cluster.by(way):
        cluster.answer(way, sent, moved(0))
    sent = cluster.sent()
    cluster.check()
    assert [type(each.command) for each in sent] == [Pause, GetPlacement, Pause] or [type(each.command) for each in sent] == [
        GetPlacement,
        Pause,
        Pause,
    ]
    assert [each.header.request for each in sent if isinstance(each.command, Pause)] == [call.request for call in calls]
    assert way.state == WayState.OPEN, "its other shards are there"
    (question,) = [each for each in sent if isinstance(each.command, GetPlacement)]
    for each in sent:
        if each is not question:
            cluster.answer(cluster.session.routes.router, each, Done())
    cluster.answer(cluster.session.routes.router, question, Placement([view("one", epoch=9, door=ONE.door)]))
    cluster.ask(Q[0])
    assert [each.header.epoch for each in cluster.by(way)] == [epoch_tag((1 << 40) + 9)]


def test_a_placement_that_is_never_named_is_asked_for_again() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    for _ in range(2):
        cluster.session.routes.placed([ONE], SHARDS)
        cluster.ask(Q[0])
        (sent,) = cluster.by(way)
        cluster.answer(way, sent, moved(0))
        assert len(cluster.sent(GetPlacement)) == 1
        cluster.advance(PLACEMENT_S + 0.1)
        cluster.sent()


def test_a_shard_that_is_refused_for_another_reason_is_tried_again_where_it_is() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    call = cluster.ask(Q[0], Pause())
    (sent,) = cluster.by(way)
    cluster.answer(way, sent, unavailable(0))
    cluster.advance(0.3)
    (again,) = cluster.by(way)
    assert again.header.request == call.request


def test_an_interrupted_call_that_may_not_be_repeated_is_surfaced_on_both_ways_alike() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    direct, routed = cluster.ask(Q[0], Pause()), cluster.ask(Q[2], Pause())
    (sent,), (other,) = cluster.by(way), cluster.by_router()
    cluster.answer(way, sent, interrupted(0))
    cluster.answer(cluster.session.routes.router, other, interrupted(2))
    for call in (direct, routed):
        assert isinstance(call.error, ShardUnavailableError)


def test_a_cluster_with_another_number_of_shards_is_another_cluster() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    cluster.ask(Q[1])
    (sent,) = cluster.by(way)
    cluster.session._connection._place([], 1)
    cluster.check()
    cluster.answer(way, sent, moved(1))
    assert [each.header.request for each in cluster.by_router()] == [sent.header.request]


# --- consuming ----------------------------------------------------------------------------------------------------------


def test_a_cancellation_follows_its_receive() -> None:
    cluster = PeerCluster()
    receiving = cluster.session.receive({Q[0]: 1, Q[2]: 1}, 60_000, cluster.now)
    for sent in cluster.by_router():
        cluster.answer(cluster.session.routes.router, sent, Delivered(0, []))
    waiting = {sent.key: sent for sent in cluster.by_router(Receive)}
    assert waiting.keys() == {Q[0], Q[2]}
    cluster.place(ONE)
    cluster.answer(cluster.session.routes.router, waiting[Q[2]], Delivered(0, [batch(1)]))
    assert cluster.wanted() == []
    (cancel,) = cluster.by_router(CancelReceive)
    assert cancel.key == Q[0]
    assert cancel.command.request == waiting[Q[0]].header.request
    cluster.answer(cluster.session.routes.router, waiting[Q[0]], Delivered(0, []))
    give_up(*receiving.outcome())


def test_a_receive_that_waits_on_a_lost_way_waits_on_the_next_one() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    receiving = cluster.session.receive({Q[0]: 1}, 10_000, cluster.now)
    (sent,) = cluster.by(way, Receive)
    cluster.advance(4.0)
    cluster.lose(way)
    (again,) = cluster.by_router(Receive)
    assert again.header.request == sent.header.request
    assert again.command.wait_ms == 6000
    cluster.answer(cluster.session.routes.router, again, Delivered(0, [batch(1)]))
    give_up(*receiving.outcome())


def test_a_subscription_whose_way_changes_begins_a_new_incarnation() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    subscription = cluster.session.subscribe(Q[0], 10, cluster.now, auto_extend=True)
    (beat,) = cluster.by(way, Subscribe)
    cluster.answer(way, beat, Subscribed(3, 0, []))
    assert subscription.incarnation == 3
    cluster.lose(way)
    assert subscription.incarnation == 0
    (again,) = cluster.by_router(Subscribe)
    assert again.command.incarnation == 0
    cluster.answer(cluster.session.routes.router, again, Subscribed(4, 0, []))
    assert subscription.incarnation == 4
    cluster.lose_router()
    assert subscription.incarnation == 0


def test_the_loss_of_the_router_leaves_direct_subscriptions_alone() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    subscription = cluster.session.subscribe(Q[0], 10, cluster.now, auto_extend=True)
    (beat,) = cluster.by(way, Subscribe)
    cluster.answer(way, beat, Subscribed(3, 0, []))
    cluster.lose_router()
    assert subscription.incarnation == 3


# --- ends and bounds ----------------------------------------------------------------------------------------------------


def test_a_farewell_goes_the_way_of_what_it_ends() -> None:
    cluster = PeerCluster(ONE)
    way = cluster.open(Q[0])
    cluster.session.subscribe(Q[0], 10, cluster.now, auto_extend=True)
    (beat,) = cluster.by(way, Subscribe)
    cluster.answer(way, beat, Subscribed(3, 0, []))
    calls = cluster.session.goodbye(cluster.now, FilaError("closed"))
    (sent,) = cluster.by(way, Goodbye)
    cluster.answer(way, sent, Done())
    assert [call.done for call in calls] == [True]


def test_the_pipe_of_a_direct_way_is_bounded_and_probed() -> None:
    cluster = PeerCluster(ONE, pipe_bytes_max=1500)
    way = cluster.open(Q[0])
    calls = [cluster.ask(Q[0], Receive(1, 60_000)) for _ in range(4)]
    *first, probe = cluster.by(way)
    assert len(first) < 4
    assert isinstance(probe.command, Hello)
    assert way.pipe_bytes <= 1500 + probe.header.request * 0 + 1000
    cluster.answer(way, probe, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    rest = [sent for sent in cluster.by(way) if not isinstance(sent.command, Hello)]
    assert rest
    assert [each.header.request for each in (*first, *rest)] == [call.request for call in calls][: len(first) + len(rest)]


def test_a_client_that_wants_no_direct_way_has_none() -> None:
    cluster = PeerCluster(ONE, greeted=False)
    cluster.session._connection._direct = False
    (hello,) = cluster.sent(Hello)
    cluster.reply(hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20, SECRET, cluster.doors))
    cluster.place(ONE, TWO)
    cluster.ask(Q[0])
    assert cluster.wanted() == []
    assert len(cluster.by_router()) == 1
    assert QueueList is not None


def test_a_way_has_its_time_to_open_however_long_the_client_was_idle() -> None:
    cluster = PeerCluster(ONE)
    cluster.advance(3600)
    cluster.ask(Q[0])
    (way,) = cluster.wanted()
    cluster.advance(OPENING_S - 0.01)
    assert cluster.by_router() == []
    cluster.let_in(way)
    assert len(cluster.by(way)) == 1


def test_an_answer_to_an_earlier_frame_of_a_call_takes_none_out_of_the_pipe_that_has_not_left() -> None:
    way = Way()
    way.put([b"1"], 10)
    way.outgoing.clear()  # it has left
    again = way.put([b"1"], 10)
    assert way.has_read(again) == 10
    way.check()
    assert len(way.take_unsent()) == 1
    assert way.pipe_bytes == 0

"""Single rules of the machine, one process and one shard. Hosts together are in ``tests/property/replication/test_leadership.py``."""

import pytest

from fila_worker.log.bodies import Beat, Body, Figures, Leaves, Marker, Node, TransferRequest, decode_body, encode_body
from fila_worker.log.leadership import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    Leadership,
    LeadershipLimits,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.records import RecordKind
from fila_worker.log.rule import Counted, Position

ME = Node("disk-a", "host-a", "", "life-2")
FORMER = Node("disk-a", "host-a", "", "life-1")
OTHER = Node("disk-b", "host-b", "", "life-1")
LOOP_MS = 100


class Stand:
    """A process with one machine. It answers each question at once, unless it is told not to, and looks at the log every 100 ms."""

    def __init__(self, epoch: int = -1, last: Node | None = None, next_offset: int = 0) -> None:
        self.now = 1_000_000
        self.machine = Leadership(ME, self.now, epoch=epoch, last=last)
        self.next_offset = self.end = next_offset
        self.answers = True
        self.asked: int | None = None
        self.told: int | None = None
        self.done: list[Action] = []

    def run(self, span_ms: int) -> list[Action]:
        """Let time pass in rounds; return what the machine wanted but the questions."""
        until = self.now + span_ms
        did = self.round()
        while self.now < until and not did:
            self.now = min(self.now + LOOP_MS, until)
            did = self.round()
        return did

    def round(self) -> list[Action]:
        did: list[Action] = []
        for _ in range(10):
            actions = self.machine.step(self.now)
            asks = [action for action in actions if isinstance(action, AskEnd)]
            did += [action for action in actions if not isinstance(action, AskEnd)]
            if asks and self.asked is None:
                self.asked = self.now
            if self.asked is not None and self.answers:
                self.told, self.asked = self.asked, None
            self.machine.tail(self.next_offset, self.end, self.told, self.now)
            if not asks:
                return did
        raise AssertionError("it asks for ever")

    def read(self, kind: RecordKind, epoch: int, body: Body | bytes = b"") -> None:
        offset = self.next_offset
        data = body if isinstance(body, bytes) else encode_body(body)
        number = 0 if kind is RecordKind.MARKER else 1
        self.next_offset += 1
        self.end = max(self.end, self.next_offset)
        self.machine.read(Counted(Position(offset, epoch, number), kind, data), self.now)

    def claimed(self, body: Marker | None = None) -> None:
        """Let its marker arrive, be reported and read."""
        self.now += 2
        offset = self.next_offset
        self.machine.marked(offset, self.now)
        self.read(RecordKind.MARKER, offset, body or Marker(ME, 1))


def following(**more: object) -> Stand:
    """It has read the marker of another node, and stands at the end."""
    stand = Stand(**more)  # type: ignore[arg-type]
    stand.read(RecordKind.MARKER, stand.next_offset, Marker(OTHER, 1))
    assert stand.run(500) == []
    return stand


def serving() -> Stand:
    stand = Stand()
    assert kinds(stand.run(100)) == [RecordKind.MARKER]
    stand.claimed()
    assert stand.run(0) == [Recover(0)]
    stand.machine.recovered(stand.now)
    assert stand.run(0) == [Serve()]
    return stand


def kinds(actions: list[Action]) -> list[RecordKind]:
    return [action.kind for action in actions if isinstance(action, Append)]


def body_of(action: Action, kind: type[Body]) -> Body | None:
    assert isinstance(action, Append)
    return decode_body(action.body, kind)


# --- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "silence_ms"), [(0, 6000), (1, 6500), (3, 7500), (1000, 10_000)])
def test_a_silence_makes_a_standby_claim_in_its_turn(rank: int, silence_ms: int) -> None:
    stand = following()
    stand.machine.rank = rank
    stand.read(RecordKind.BEAT, 0, Beat(OTHER))
    assert stand.run(silence_ms - 1) == []
    (claim,) = stand.run(1)
    assert body_of(claim, Marker) == Marker(ME, 1)
    assert stand.machine.state is LeadershipState.CLAIMS


@pytest.mark.parametrize("kind", [RecordKind.MARKER, RecordKind.BATCH, RecordKind.BEAT])
def test_any_record_that_counts_is_a_sign_of_life(kind: RecordKind) -> None:
    stand = following()
    stand.run(5900)
    stand.read(kind, stand.next_offset if kind is RecordKind.MARKER else 0, b"\xff")
    assert stand.run(5900) == []


def test_who_is_not_at_the_end_does_not_claim() -> None:
    stand = following()
    stand.end += 1
    assert stand.run(30_000) == []
    stand.end -= 1
    assert kinds(stand.run(600)) == [RecordKind.MARKER]


def test_a_silence_in_which_this_process_did_not_run_is_none() -> None:
    stand = following()
    stand.run(5000)
    stand.now += 1001
    assert stand.run(5999) == []
    assert kinds(stand.run(100)) == [RecordKind.MARKER]


def test_a_short_pause_changes_nothing() -> None:
    stand = following()
    stand.read(RecordKind.BEAT, 0)
    stand.run(5000)
    stand.now += 1000
    assert kinds(stand.run(0)) == [RecordKind.MARKER]


def test_a_partition_that_does_not_answer_puts_a_claim_off() -> None:
    stand = following()
    stand.answers = False
    assert stand.run(20_000) == []
    stand.answers = True
    assert stand.run(1900) == []
    assert kinds(stand.run(700)) == [RecordKind.MARKER]


def test_a_partition_that_stopped_answering_is_given_time_for_the_leader() -> None:
    """What the leader could not append meanwhile comes first."""
    stand = following()
    stand.run(4500)
    stand.answers = False
    stand.run(4000)
    stand.answers = True
    assert stand.run(1900) == []
    stand.read(RecordKind.BEAT, 0)
    assert stand.run(5900) == []


def test_an_old_answer_is_none() -> None:
    stand = following()
    stand.run(4400)
    stand.answers = False
    assert stand.run(20_000) == []


@pytest.mark.parametrize(("left", "due_ms"), [(False, 6000), (True, 1500)])
def test_the_last_look_before_a_claim_is_not_older_than_its_due_time(left: bool, due_ms: int) -> None:
    """The one before in the line may have claimed since the last regular question."""
    stand = following()
    stand.machine.rank = 1
    if left:
        stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, "host-c"))
    stand.run(due_ms - LOOP_MS // 2)
    assert stand.machine.state is LeadershipState.FOLLOWS
    stand.end += 1  # the marker of another one, which has not been read yet
    assert stand.run(1000) == []
    stand.read(RecordKind.MARKER, stand.next_offset, Marker(Node("disk-c", "host-c", "", "life-1"), 1))
    assert stand.run(5000) == []


def test_the_named_successor_claims_at_once_and_the_others_after_it() -> None:
    for rank, to, wait_ms in [(2, "host-a", 0), (0, "host-c", 1000), (1, "host-c", 1500), (0, "", 0), (1, "", 500)]:
        stand = following()
        stand.machine.rank = rank
        stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, to))
        if wait_ms:
            assert stand.run(wait_ms - 1) == []
        assert kinds(stand.run(1)) == [RecordKind.MARKER], (rank, to)


def test_a_question_that_was_under_way_too_early_is_asked_again_at_once() -> None:
    stand = following()
    stand.answers = False
    stand.run(2100)
    stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, "host-a"))
    assert stand.run(0) == []
    stand.answers = True
    assert kinds(stand.run(2 * LOOP_MS)) == [RecordKind.MARKER]


def test_a_leaver_whose_body_can_not_be_read_is_followed_by_the_first_in_line() -> None:
    stand = following()
    stand.read(RecordKind.LEAVES, 0, b"\x09")
    assert kinds(stand.run(1)) == [RecordKind.MARKER]


def test_a_new_marker_ends_a_vacancy() -> None:
    stand = following()
    stand.machine.rank = 1
    stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, ""))
    stand.read(RecordKind.MARKER, stand.next_offset, Marker(Node("disk-c", "host-c"), 1))
    assert stand.run(5900) == []


def test_a_process_that_starts_again_claims_what_its_former_self_led() -> None:
    for stand in (Stand(4, FORMER, 9), Stand()):
        if not stand.next_offset:
            stand.read(RecordKind.MARKER, 0, Marker(FORMER, 1))
        assert kinds(stand.run(100)) == [RecordKind.MARKER]


def test_a_marker_of_the_former_self_that_comes_late_is_waited_out() -> None:
    stand = following()
    stand.read(RecordKind.MARKER, stand.next_offset, Marker(FORMER, 1))
    assert stand.run(5900) == []


def test_an_unknown_leader_is_not_dead() -> None:
    assert Stand(4, None, 9).run(5900) == []
    assert Stand(4, OTHER, 9).run(5900) == []


def test_a_log_without_a_marker_is_claimed_in_line() -> None:
    stand = Stand()
    stand.machine.rank = 2
    assert stand.run(3999) == []
    assert kinds(stand.run(101)) == [RecordKind.MARKER]


def test_who_gets_a_place_in_the_line_late_keeps_the_distance() -> None:
    stand = Stand()
    stand.machine.rank = 8
    stand.run(3000)
    stand.machine.rank = 1
    assert stand.run(1999) == []
    assert kinds(stand.run(101)) == [RecordKind.MARKER]
    first = Stand()
    first.machine.rank = 8
    first.run(3000)
    first.machine.rank = 0
    assert kinds(first.run(0)) == [RecordKind.MARKER]


def test_what_the_former_self_has_left_to_nobody_is_claimed_at_once() -> None:
    stand = Stand(5, FORMER, 5)
    stand.machine.rank = 8
    stand.read(RecordKind.LEAVES, 5, Leaves(FORMER, ""))
    assert kinds(stand.run(100)) == [RecordKind.MARKER]
    left = Stand(5, FORMER, 5)
    left.machine.rank = 8
    left.read(RecordKind.LEAVES, 5, Leaves(FORMER, "host-b"))
    assert left.run(4900) == []


def test_a_claim_asks_for_the_end_once_more() -> None:
    stand = Stand()
    stand.run(100)
    stand.answers = False
    stand.claimed()
    assert stand.run(400) == []
    stand.answers = True
    assert stand.run(100) == [Recover(0)]
    assert stand.machine.state is LeadershipState.LEADS
    assert not stand.machine.serves


def test_a_claim_waits_for_its_report_and_for_its_record() -> None:
    stand = Stand()
    stand.run(100)
    stand.read(RecordKind.MARKER, 0, Marker(ME, 1))
    assert stand.run(1000) == []
    stand.machine.marked(None, stand.now)
    assert stand.run(600)[0] == Recover(0)


def test_a_marker_before_ones_own_is_beaten() -> None:
    stand = Stand()
    stand.run(100)
    stand.read(RecordKind.MARKER, 0, Marker(OTHER, 1))
    stand.claimed()
    assert stand.run(0) == [Recover(1)]


def test_a_marker_behind_ones_own_wins_without_harm() -> None:
    stand = Stand()
    stand.run(100)
    stand.claimed()
    stand.read(RecordKind.MARKER, 1, Marker(OTHER, 1))
    (follow,) = stand.run(0)
    assert isinstance(follow, Follow)
    assert "another marker is at offset 1" in follow.reason
    assert stand.machine.state is LeadershipState.FOLLOWS
    assert stand.run(5900) == []


def test_a_failed_claim_is_tried_again_later() -> None:
    stand = following()
    stand.run(7000)
    stand.machine.mark_failed("timed out", stand.now)
    assert isinstance(stand.run(0)[0], Follow)
    stand.read(RecordKind.MARKER, stand.next_offset, Marker(ME, 1))  # it came nevertheless
    assert stand.run(1900) == []
    (claim,) = stand.run(200)
    assert body_of(claim, Marker) == Marker(ME, 2)


# --- reigns -----------------------------------------------------------------------------------------------------------


def test_a_leader_beats_once_a_second_and_tells_its_figures() -> None:
    stand = serving()
    stand.machine.figures = Figures(3, 1000, 7)
    for number in range(1, 4):
        (beat,) = stand.run(1000)
        assert body_of(beat, Beat) == Beat(ME, Figures(3, 1000, 7))
        stand.machine.appended(number, stand.now, turn=False)
        stand.machine.confirmed(number, stand.now)
        assert stand.run(900) == []


def test_a_beat_on_the_way_is_enough() -> None:
    stand = serving()
    assert kinds(stand.run(1000)) == [RecordKind.BEAT]
    stand.machine.appended(1, stand.now, turn=False)
    assert stand.run(5000) == []


def test_a_leader_without_proof_stops_serving_and_goes_on_with_it() -> None:
    stand = serving()
    assert kinds(stand.run(1000)) == [RecordKind.BEAT]
    stand.machine.appended(1, stand.now, turn=False)
    (stop,) = stand.run(8000)
    assert stand.now - 1_000_000 <= 8200
    assert stop == StopServing("nothing was confirmed that was appended in the last 8 s")
    assert not stand.machine.serves
    stand.machine.confirmed(1, stand.now)
    serve, beat = stand.run(0)
    assert serve == Serve()
    assert kinds([beat]) == [RecordKind.BEAT]


def test_a_report_that_comes_late_proves_only_when_it_was_appended() -> None:
    """A paused process finds the report of its last beat, and may have been deposed since."""
    stand = serving()
    stand.run(1000)
    stand.machine.appended(1, stand.now, turn=False)
    stand.now += 20_000
    stand.machine.confirmed(1, stand.now)
    stop, beat = stand.round()
    assert isinstance(stop, StopServing)
    assert kinds([beat]) == [RecordKind.BEAT]
    assert not stand.machine.serves


def test_a_foreign_marker_ends_a_leader_that_has_written() -> None:
    stand = serving()
    stand.machine.appended(1, stand.now)
    stand.read(RecordKind.MARKER, 5, Marker(OTHER, 1))
    stop, end = stand.run(0)
    assert isinstance(stop, StopServing)
    assert isinstance(end, End)
    assert stand.machine.state is LeadershipState.ENDED
    assert stand.machine.next_due(stand.now) is None
    assert stand.machine.step(stand.now) == []


def test_a_foreign_marker_before_the_first_turn_ends_nothing() -> None:
    stand = Stand()
    stand.run(100)
    stand.claimed()
    stand.run(0)
    stand.machine.appended(1, stand.now, turn=False)
    stand.machine.fenced("another marker", stand.now)
    assert stand.run(0) == [Follow("another marker")]


def test_an_unknown_outcome_ends_the_process() -> None:
    stand = serving()
    stand.machine.failed("timed out")
    assert stand.run(0) == [StopServing("timed out"), End("timed out")]


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_a_leader_leaves_when_all_it_has_appended_counts() -> None:
    stand = serving()
    stand.machine.appended(1, stand.now)
    stand.machine.leave("host-b", stand.now)
    assert stand.run(0) == [StopServing("the shard goes to another host")]
    assert stand.machine.state is LeadershipState.LEAVES
    stand.machine.appended(2, stand.now)  # the last turn
    stand.machine.stopped(stand.now)
    stand.machine.confirmed(1, stand.now)
    assert stand.run(500) == []
    stand.machine.confirmed(2, stand.now)
    (leaves,) = stand.run(0)
    left = body_of(leaves, Leaves)
    assert (left.node, left.successor) == (ME, "host-b")
    assert left.alone_ms > 0
    stand.machine.appended(3, stand.now, turn=False)
    assert stand.run(5000) == []
    stand.machine.confirmed(3, stand.now)
    assert stand.run(0) == [Follow("the shard was left")]
    assert stand.machine.state is LeadershipState.FOLLOWS


def test_who_has_left_claims_only_if_nobody_else_does() -> None:
    stand = serving()
    stand.machine.leave("", stand.now)
    stand.run(0)
    stand.machine.stopped(stand.now)
    assert kinds(stand.run(0)) == [RecordKind.LEAVES]
    stand.machine.appended(1, stand.now, turn=False)
    stand.machine.confirmed(1, stand.now)
    stand.run(0)
    assert stand.run(5900) == []
    assert kinds(stand.run(200)) == [RecordKind.MARKER]


def test_a_second_reign_begins_like_the_first() -> None:
    stand = serving()
    stand.machine.appended(1, stand.now)
    stand.machine.confirmed(1, stand.now)
    stand.machine.leave("", stand.now)
    stand.run(0)
    stand.machine.stopped(stand.now)
    stand.run(0)
    stand.machine.appended(2, stand.now, turn=False)
    stand.machine.confirmed(2, stand.now)
    stand.run(0)
    assert kinds(stand.run(7000)) == [RecordKind.MARKER]
    stand.claimed(Marker(ME, 2))
    assert stand.run(0) == [Recover(1)]
    assert stand.run(500) == [], "it has not recovered"
    stand.machine.leave("host-b", stand.now)
    assert len(stand.run(0)) == 1
    assert kinds(stand.run(400)) == [], "it has not stopped"


def test_who_has_left_knows_nothing_of_the_end_until_it_has_read_on() -> None:
    stand = serving()
    stand.machine.fenced("another marker", stand.now)
    assert isinstance(stand.machine.step(stand.now)[0], StopServing)
    assert not stand.machine.follows_closely
    stand.run(600)
    assert stand.machine.follows_closely


def test_who_retires_never_claims() -> None:
    stand = following()
    stand.machine.retire("", stand.now)
    stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, "host-a"))
    assert stand.run(30_000) == []


def test_a_wish_to_leave_during_a_claim_is_kept() -> None:
    stand = Stand()
    stand.run(100)
    stand.machine.retire("host-b", stand.now)
    stand.claimed()
    assert stand.run(0) == [Recover(0), StopServing("the shard goes to another host")]


def test_a_leader_that_is_fenced_while_it_leaves_loses_nothing() -> None:
    stand = serving()
    stand.machine.appended(1, stand.now)
    stand.machine.leave("host-b", stand.now)
    stand.run(0)
    stand.machine.fenced("another marker", stand.now)
    assert isinstance(stand.run(0)[0], End)  # its last turn may be missing in the log

    stand = serving()
    stand.machine.appended(1, stand.now)
    stand.machine.leave("host-b", stand.now)
    stand.run(0)
    stand.machine.stopped(stand.now)
    stand.machine.confirmed(1, stand.now)
    assert kinds(stand.run(0)) == [RecordKind.LEAVES]
    stand.machine.appended(2, stand.now, turn=False)
    stand.machine.fenced("another marker", stand.now)
    assert stand.run(0) == [Follow("another marker")]


# --- wishes -----------------------------------------------------------------------------------------------------------


def test_a_standby_wishes_now_and_then_while_the_leader_speaks() -> None:
    stand = following()
    stand.machine.wants = True
    stand.read(RecordKind.BEAT, 0, Beat(OTHER))
    (wish,) = stand.run(0)
    assert body_of(wish, TransferRequest) == TransferRequest("host-a", 0)
    for _ in range(4):
        assert stand.run(1000) == []
        stand.read(RecordKind.BEAT, 0, Beat(OTHER))
    assert kinds(stand.run(1000)) == [RecordKind.TRANSFER_REQUEST]


def test_nothing_is_asked_of_a_leader_that_is_silent_or_has_left() -> None:
    stand = following()
    stand.read(RecordKind.BEAT, 0, Beat(OTHER))
    stand.run(2100)
    stand.machine.wants = True
    assert stand.run(3800) == []
    stand.machine.rank = 4
    stand.read(RecordKind.LEAVES, 0, Leaves(OTHER, ""))
    assert stand.run(1900) == []


def test_who_is_behind_wishes_nothing() -> None:
    stand = following()
    stand.end += 5
    assert stand.run(2100) == []
    stand.machine.wants = True
    stand.read(RecordKind.BEAT, 0, Beat(OTHER))
    assert stand.run(0) == []
    stand.next_offset = stand.end
    assert kinds(stand.run(100)) == [RecordKind.TRANSFER_REQUEST]


def test_a_leader_hears_a_wish_that_is_meant_for_it() -> None:
    stand = serving()
    assert stand.machine.requested_transfer(encode_body(TransferRequest("host-b", 0))) == "host-b"
    for wish in (TransferRequest("host-b", 5), TransferRequest("host-a", 0), TransferRequest("", 0)):
        assert stand.machine.requested_transfer(encode_body(wish)) is None
    assert stand.machine.requested_transfer(b"\x07") is None
    stand.machine.leave("host-c", stand.now)
    assert stand.machine.requested_transfer(encode_body(TransferRequest("host-b", 0))) is None
    assert following().machine.requested_transfer(encode_body(TransferRequest("host-b", 0))) is None


# --- the clock --------------------------------------------------------------------------------------------------------


def test_between_two_dues_nothing_is_to_be_done() -> None:
    """Who calls it when it is due misses nothing, and never turns without cause."""
    stand = following()
    steps = 0
    while stand.machine.state is LeadershipState.FOLLOWS:
        due = stand.machine.next_due(stand.now)
        assert due is not None
        assert due > stand.now or steps < 100
        stand.now, steps = min(max(due, stand.now), stand.now + 900), steps + 1
        stand.round()
    assert 6000 <= stand.now - 1_000_000 <= 6600
    assert steps < 40


@pytest.mark.parametrize(
    "wrong",
    [{"proof_ms_max": 10_000}, {"proof_ms_max": 1000}, {"silence_ms": 3000}, {"ask_ms": 1000}, {"answer_ms_max": 3000}],
)
def test_limits_that_break_a_promise_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        LeadershipLimits(**wrong)

"""The states of one process in one shard, and the ways between them."""

from fila_worker.log.bodies import Beat, Body, Figures, Leaves, Marker, Node, TransferRequest, decode_body, encode_body
from fila_worker.log.leadership.actions import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.leadership.candidacy import Candidacy, EndOfLog, Vacancy
from fila_worker.log.leadership.term import LeadershipLimits, LeadershipTerm, Proof
from fila_worker.log.records import RecordKind
from fila_worker.log.rule import Counted


class Leadership:
    """One shard in one process: report each event, then call :meth:`step`, and carry out the returned actions in their order.

    Call :meth:`step` first in each round of the process's loop, before any work is taken: after a pause it may return a
    :class:`StopServing`. Call it again after its actions and after each report, at ``next_due`` at the latest.

    ``rank``: its place in the line of standbys; ``wants``: whether to ask the leader for the shard; ``figures``: for the
    beats. Set them at any time.
    """

    def __init__(
        self, node: Node, now_ms: int, limits: LeadershipLimits | None = None, epoch: int = -1, last: Node | None = None
    ) -> None:
        """``epoch``: of the copy's position, -1 if it begins with the log. ``last``: the node of that marker, if known."""
        self.node, self.limits = node, limits or LeadershipLimits()
        self.state = LeadershipState.FOLLOWS
        self.serves = False
        self.wants = False
        self.figures = Figures()
        self.leader: Node | None = last
        """The node of the last marker; None: unknown."""
        self.leader_figures = Figures()
        self.epoch = epoch
        """The last marker's offset; -1: none was read."""
        self._actions: list[Action] = []
        self._stepped_ms = self._others_ms = now_ms
        self._alone_before_ms = 0
        """For how long the leader before was alone, by its last record."""
        self._retires = False
        self._candidacy = Candidacy(node, now_ms, self.limits)
        self._log_end = EndOfLog(now_ms, self.limits)
        self._reached_end = False
        self._requested_ms = now_ms - self.limits.request_ms
        # a claim
        self._claim = 0
        self._claimed_ms = now_ms
        self._marked = False
        self._mark: int | None = None
        """Where the marker is; None: unknown."""
        self._found_ms: int | None = None
        """When this node's own marker was read, and behind any question before."""
        self._term = LeadershipTerm(now_ms, self.limits)
        """The last one."""
        self._successor: str | None = None

    @property
    def rank(self) -> int:
        """Its place in the line of standbys."""
        return self._candidacy.rank

    @rank.setter
    def rank(self, rank: int) -> None:
        self._candidacy.place(rank, self._stepped_ms)

    @property
    def holds_back(self) -> bool:
        """Whether it claims only after a silence, even if the last leader was an earlier process of this node."""
        return self._candidacy.holds_back

    @holds_back.setter
    def holds_back(self, holds_back: bool) -> None:
        self._candidacy.holds_back = holds_back

    @property
    def proof_ms(self) -> int | None:
        """When the last record was appended that proves that this node leads; None: it does not lead."""
        return self._term.proof_ms if self._has_term() else None

    # --- what happened ------------------------------------------------------------------------------------------------

    def read(self, counted: Counted, now_ms: int) -> None:
        """Process a record that the tail has read, in any state."""
        self._listen(now_ms)
        self._candidacy.heard_ms = now_ms
        self._log_end.read(counted.position.offset)
        if counted.kind is RecordKind.MARKER:
            self._read_marker(counted, now_ms)
            return
        if self._has_term():
            return  # its own
        self._others_ms, self._alone_before_ms = now_ms, 0
        self.epoch, self._candidacy.vacancy = counted.position.epoch, None
        if counted.kind is RecordKind.BEAT and (beat := decode_body(counted.body, Beat)):
            self.leader, self.leader_figures = beat.node, beat.figures
        elif counted.kind is RecordKind.LEAVES:
            leaves = decode_body(counted.body, Leaves)
            self._candidacy.vacancy = Vacancy(now_ms, leaves.successor if leaves else "")
            self.leader = leaves.node if leaves else None
            self._alone_before_ms = leaves.alone_ms if leaves else 0

    def tail(self, next_offset: int, end: int | None, asked_ms: int | None, now_ms: int) -> None:
        """Note the state of the tail: the next offset that it reads, and the partition's answer (see ``log.partition``)."""
        self._listen(now_ms)
        self._log_end.take(next_offset, end, asked_ms)

    def marked(self, offset: int | None, now_ms: int) -> None:
        """Note that the marker is in the log; ``offset`` None: unknown where."""
        self._listen(now_ms)
        if self.state is LeadershipState.CLAIMS:
            self._marked, self._mark = True, offset

    def mark_failed(self, reason: str, now_ms: int) -> None:
        """Note that the marker is in the log or not. If it is found later, it counts as a vacancy."""
        self._listen(now_ms)
        if self.state is LeadershipState.CLAIMS:
            self._give_up(f"its marker may be in the log or not: {reason}", now_ms, own=self._found_ms is not None)
            self._candidacy.not_before_ms = now_ms + self.limits.again_ms

    def appended(self, number: int, now_ms: int, *, turn: bool = True) -> None:
        """Note the writer's last number, after each turn, beat or LEAVES; ``turn``: it has changes of the shard."""
        self._listen(now_ms)
        self._term.append(number, now_ms, turn=turn)

    def confirmed(self, number: int, now_ms: int) -> None:
        """Note the last number that counts."""
        self._listen(now_ms)
        self._term.confirm(number)

    def fenced(self, reason: str, now_ms: int) -> None:
        """Note that another marker was read behind this writer's own."""
        self._listen(now_ms)
        if self.state is LeadershipState.CLAIMS or (self._has_term() and self._term.is_what_others_have):
            self._give_up(reason, now_ms)
        elif self.state is not LeadershipState.FOLLOWS:
            self.failed(reason)

    def failed(self, reason: str) -> None:
        """Note that an append has an unknown outcome, or another failure after which this writer's copy must end."""
        if self.state is not LeadershipState.ENDED:
            self._stop_serving(reason)
            self.state = LeadershipState.ENDED
            self._actions.append(End(reason))

    def recovered(self, now_ms: int) -> None:
        """Note that the shard is ready to serve."""
        self._listen(now_ms)
        self._term.recovered = True

    def leave(self, successor: str, now_ms: int) -> None:
        """Give the shard up, to a host if one is named. No effect on who does not lead, or leaves already."""
        self._listen(now_ms)
        if self.state in {LeadershipState.CLAIMS, LeadershipState.LEADS} and self._successor is None:
            self._successor = successor

    def retire(self, successor: str, now_ms: int) -> None:
        """Like :meth:`leave`, and never claim again, because the process is about to end."""
        self._retires = True
        self.leave(successor, now_ms)

    def stopped(self, now_ms: int) -> None:
        """Note that no turn will come any more, after a :class:`StopServing` in state LEAVES."""
        self._listen(now_ms)
        self._term.stopped = True

    def requested_transfer(self, body: bytes) -> str | None:
        """Return the host that asks for the shard by a TRANSFER_REQUEST; None if this leader should not leave."""
        request = decode_body(body, TransferRequest)
        if request is None or not self.serves or self.state is not LeadershipState.LEADS or self._successor is not None:
            return None
        return request.host if request.epoch == self.epoch and request.host not in {"", self.node.host} else None

    # --- what to do ---------------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> list[Action]:
        """Return what is to be done now, in this order."""
        self._listen(now_ms)
        if self.state is LeadershipState.FOLLOWS:
            self._follow(now_ms)
        if self.state is LeadershipState.CLAIMS:
            self._check_claim(now_ms)
        if self._has_term():
            self._lead(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def next_due(self, now_ms: int) -> int | None:
        """Return when :meth:`step` has something to do without an event; None: never."""
        if self._actions:
            return now_ms
        dues: list[int] = []
        if self.state is LeadershipState.FOLLOWS or (
            self.state is LeadershipState.CLAIMS and self._marked and self._found_ms is not None
        ):
            dues.append(self._ask_due_ms(now_ms))
        if self.state is LeadershipState.FOLLOWS:
            claim = self._claim_due_ms()
            dues += [due for due in (claim, claim - self._log_end.watch_ms) if due > now_ms]
            if self._may_request():
                dues.append(self._requested_ms + self.limits.request_ms)
        if self._has_term() and (beat := self._term.beat_due_ms) is not None:
            dues.append(beat)
        if self.serves:
            dues.append(self._term.proof_due_ms)
        return max(min(dues), now_ms) if dues else None

    def proof(self, now_ms: int) -> Proof | None:
        """Return the proof that it leads, while it serves."""
        if not self.serves:
            return None
        return Proof(self.epoch, now_ms - self._term.proof_ms, now_ms - self._others_ms, self._alone_before_ms)

    @property
    def follows_closely(self) -> bool:
        """Whether it follows and has read all that the partition had when it last answered."""
        return self.state is LeadershipState.FOLLOWS and self._log_end.at_end

    # --- a standby ----------------------------------------------------------------------------------------------------

    def _listen(self, now_ms: int) -> None:
        """After a time in which this process did not run, begin the silence again: it has read nothing in that time."""
        assert now_ms >= self._stepped_ms, f"the clock went back from {self._stepped_ms} to {now_ms}"
        if now_ms - self._stepped_ms > self.limits.pause_ms:
            self._candidacy.heard_ms = now_ms
            self._log_end.was_away()
        self._stepped_ms = now_ms

    def _read_marker(self, counted: Counted, now_ms: int) -> None:
        marker = decode_body(counted.body, Marker)
        offset = counted.position.offset
        mine = marker is not None and marker.node == self.node
        if self._has_term():
            if offset > self.epoch:
                self.fenced(f"another marker is at offset {offset}", now_ms)
            return
        self.epoch, self._candidacy.vacancy = offset, None
        self.leader, self.leader_figures = marker.node if marker else None, Figures()
        if self.state is LeadershipState.CLAIMS and (
            offset == self._mark or (mine and marker and marker.claim == self._claim)
        ):
            self._found_ms = max(now_ms, self._log_end.asked_ms + 1)
            return
        self._others_ms, self._alone_before_ms = now_ms, 0
        if self.state is LeadershipState.CLAIMS and self._found_ms is not None:
            self._give_up(f"another marker is at offset {offset}, behind this node's own", now_ms)
        elif mine:  # of a claim that was given up: it makes no leader
            self._candidacy.vacancy = Vacancy(now_ms, own=True)

    def _follow(self, now_ms: int) -> None:
        if self._log_end.fresh(now_ms) and self._log_end.at_end and not self._reached_end:
            self._reached_end = True
            vacancy = self._candidacy.vacancy
            if self.leader is not None and self.leader.name == self.node.name and (vacancy is None or not vacancy.to):
                self._candidacy.vacancy = Vacancy(now_ms, own=True)
            elif self.epoch < 0:
                self._candidacy.vacancy = Vacancy(now_ms, new=True)
        if self._may_claim(now_ms):
            self._begin_claim(now_ms)
            return
        if now_ms >= self._ask_due_ms(now_ms):
            self._ask(now_ms)
        if self._may_request() and now_ms >= self._requested_ms + self.limits.request_ms:
            self._requested_ms = now_ms
            self._append(RecordKind.TRANSFER_REQUEST, TransferRequest(self.node.host, self.epoch))

    def _claim_due_ms(self) -> int:
        return self._candidacy.claim_due_ms(self.leader)

    def _may_claim(self, now_ms: int) -> bool:
        log_end, due_ms = self._log_end, self._claim_due_ms()
        if self._retires or now_ms < due_ms or not log_end.fresh(now_ms) or not log_end.at_end:
            return False
        # Asked before that it may not show the marker of the one before in the line, and two would lead one after the other.
        return log_end.since(due_ms) and (not self._candidacy.by_silence or log_end.for_long(now_ms))

    def _ask_due_ms(self, now_ms: int) -> int:
        if self.state is LeadershipState.CLAIMS:
            return self._log_end.due_ms(now_ms, self._found_ms, idle=False)
        vacancy, claim_ms = self._candidacy.vacancy, self._claim_due_ms()
        need_ms = claim_ms if now_ms >= claim_ms else vacancy.since_ms if vacancy is not None else None
        idle = self._reached_end and now_ms < claim_ms - self._log_end.watch_ms
        return self._log_end.due_ms(now_ms, need_ms, idle)

    def _ask(self, now_ms: int) -> None:
        self._log_end.asked(now_ms)
        self._actions.append(AskEnd())

    def _append(self, kind: RecordKind, body: Body) -> None:
        self._actions.append(Append(kind, encode_body(body)))

    def _may_request(self) -> bool:
        """Whether it should lead and could: a leader that does not beat reads no requests."""
        beats = self._stepped_ms - self._candidacy.heard_ms <= 2 * self.limits.beat_ms
        may = self.wants and not self._retires and self._candidacy.vacancy is None and self.epoch >= 0
        return may and beats and self._log_end.at_end

    # --- a claim ------------------------------------------------------------------------------------------------------

    def _begin_claim(self, now_ms: int) -> None:
        self.state = LeadershipState.CLAIMS
        self._claim += 1
        self._claimed_ms = now_ms
        self._marked, self._mark, self._found_ms, self._successor = False, None, None, None
        self._append(RecordKind.MARKER, Marker(self.node, self._claim))

    def _check_claim(self, now_ms: int) -> None:
        """Lead if the own marker was read, and was the last one when the partition was asked after that."""
        if self._found_ms is None or not self._marked:
            return
        if self._log_end.since(self._found_ms) and self._log_end.fresh(now_ms) and self._log_end.at_end:
            self._begin_term()
        elif now_ms >= self._ask_due_ms(now_ms):
            self._ask(now_ms)

    def _give_up(self, reason: str, now_ms: int, *, own: bool = False) -> None:
        """Go back to following. The copy of the shard has nothing that does not count."""
        self._stop_serving(reason)
        self.state, self._successor = LeadershipState.FOLLOWS, None
        self._log_end.begin_again()
        self._candidacy.heard_ms = now_ms
        self._candidacy.vacancy = Vacancy(now_ms, own=True) if own else None
        self._actions.append(Follow(reason))

    # --- a term ------------------------------------------------------------------------------------------------------

    def _begin_term(self) -> None:
        self.state = LeadershipState.LEADS
        self._term = LeadershipTerm(self._claimed_ms, self.limits)
        self._actions.append(Recover(self.epoch))

    def _lead(self, now_ms: int) -> None:
        term = self._term
        proved = term.is_proved(now_ms)
        if self.serves and not proved:
            self._stop_serving(f"nothing was confirmed that was appended in the last {self.limits.proof_ms_max / 1000:g} s")
        if self._successor is not None and self.state is LeadershipState.LEADS:
            self.state = LeadershipState.LEAVES
            self.serves = False
            self._actions.append(StopServing("the shard goes to another host"))
        if self.state is LeadershipState.LEADS and term.recovered and not self.serves and proved:
            self.serves = True
            self._actions.append(Serve())
        beat = term.beat_due_ms
        if self.state is LeadershipState.LEAVES and term.stopped and term.confirmed >= term.appended:
            self._end_term(now_ms)
        elif beat is not None and now_ms >= beat:
            term.beat(now_ms)
            self._append(RecordKind.BEAT, Beat(self.node, self.figures))

    def _has_term(self) -> bool:
        return self.state is LeadershipState.LEADS or self.state is LeadershipState.LEAVES

    def _end_term(self, now_ms: int) -> None:
        """Append the LEAVES, or follow if it counts."""
        if not self._term.last_number:
            self._term.leave()
            self._append(RecordKind.LEAVES, Leaves(self.node, self._successor or "", now_ms - self._others_ms))
        elif self._term.confirmed >= self._term.last_number:
            to = self._successor or ""
            self._give_up("the shard was left", now_ms)
            self._candidacy.vacancy = Vacancy(now_ms, to)

    def _stop_serving(self, reason: str) -> None:
        if self.serves:
            self.serves = False
            self._actions.append(StopServing(reason))

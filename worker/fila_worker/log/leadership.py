"""Who leads a shard: the state machine of one shard in one process. Nothing is asked but the shard's own log.

**The last marker leads.** A leader appends a beat once a second. A standby that hears nothing for long enough appends a marker. If two do,
the later marker leads, and the other one goes back. So nobody has to agree on anything but the order of the log, and a wrong guess
costs time, never a record: what a deposed leader still appends does not count (:mod:`fila_worker.log.rule`).

::

               claim, its own marker is the last         serve when recovered
    FOLLOWS ────────────▶ CLAIMS ────────────▶ LEADS ──────────────────────▶ (serving)
       ▲  ▲                 │                    │ leave            no proof for long: stop serving, until there is one
       │  └── another one ──┘                    ▼
       └───────────────────────────────────── LEAVES          any: fenced, or an unknown outcome ─▶ ENDED

When a standby claims:

- **Silence.** It has read the log to its end and nothing that counts came for ``silence_ms``, and ``rank_ms`` more for each standby that is
  in line before it. The partition has answered all that time but the first part: after an outage of the log the leader's delayed records
  must have a chance to come. A silence in which this process itself did not run is none.
- **A vacancy.** The leader has left (its successor claims at once, the others soon after), the log has no marker yet, or the last marker is of
  this node's own former life, which is dead: the data directory is locked by this one.

A leader serves as long as it has proof. The proof is a record that counts, and holds from when that was *appended*: however late its report
comes, at that time no other marker was in the log. Without one for ``proof_ms_max`` another one may lead by now, so the leader stops serving;
it serves again if it still leads. Effects are held until confirmed anyway, so this limit is about clients that wait, not about safety.

All times are of a steady clock of this process, and only spans of it are used: what clocks of other hosts show does not matter.

Rejected: a lease with an end that others know. It needs clocks that run at about the same rate on all hosts, and saves nothing, because the
log fences anyway.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from fila_worker.log.bodies import Beat, Body, Figures, Leaves, Marker, Node, Wish, decode_body, encode_body
from fila_worker.log.records import Kind
from fila_worker.log.rule import Counted


@dataclass(frozen=True, slots=True)
class LeadershipLimits:
    """Spans of time in milliseconds."""

    beat_ms: int = 1000
    """Between two beats."""
    silence_ms: int = 6000
    """Of a leader, before the first in line claims. A log's partition that loses its own leader stalls for 4 to 7 s."""
    rank_ms: int = 500
    """More for each standby that is in line before: longer than a claim takes."""
    ranks_max: int = 8
    """The longest line: it bounds the silence."""
    pause_ms: int = 1000
    """A longer gap between two steps of this process means that it did not listen."""
    answering_ms: int = 2000
    """How long the partition must have answered before a silence counts: longer than a leader takes to get a delayed beat through."""
    ask_ms: int = 500
    """Between two questions when a claim may be due soon."""
    ask_idle_ms: int = 2000
    """Between two questions otherwise: they tell how far a copy is behind."""
    answer_ms_max: int = 1000
    """An older answer is none."""
    succession_ms: int = 1000
    """How long the others leave a shard to the named successor."""
    again_ms: int = 2000
    """Between a claim that failed and the next one."""
    wish_ms: int = 5000
    """Between two wishes."""
    proof_ms_max: int = 8000
    """A leader that can show no younger proof stops serving. Contract: less than 10 s."""

    def __post_init__(self) -> None:
        assert 0 < self.beat_ms < self.proof_ms_max < 10_000, (
            "a leader ends its reign by itself within 10 s, and beats more often"
        )
        assert self.beat_ms + self.answering_ms < self.silence_ms, "a silence is longer than the time between two beats"
        assert self.ask_ms < self.answer_ms_max <= self.answering_ms, "an answer is young when the next one comes"


class State(Enum):
    """What this process is to the shard."""

    FOLLOWS = auto()
    CLAIMS = auto()
    """Its marker is on the way, or in the log and perhaps not the last one."""
    LEADS = auto()
    """Its marker is the last one it knows of. It may serve, or recover, or lack proof."""
    LEAVES = auto()
    """It takes no work any more; it appends a LEAVES when all that it has appended counts."""
    ENDED = auto()
    """This process must not go on: its copy of the shard may be ahead of the log."""


class Ask(NamedTuple):
    """Ask the partition for its end."""


class Append(NamedTuple):
    """Append a record of this kind: a MARKER or a WISH with the standby's own appender, a BEAT or a LEAVES with the writer.

    Tell the machine :meth:`Leadership.marked` or :meth:`Leadership.mark_failed` of a MARKER, nothing of a WISH: if one fails, just take a new
    appender.
    """

    kind: Kind
    body: bytes


class Recover(NamedTuple):
    """Begin a writer at the position of this node's marker, recover the shard, then call :meth:`Leadership.recovered`.

    Records have to be appended and read meanwhile: call :meth:`Leadership.step` as ever.
    """

    epoch: int


class Serve(NamedTuple):
    """Take work, and tell the routers."""


class StopServing(NamedTuple):
    """Take no work, and tell the routers. In state LEAVES: end all turns and call :meth:`Leadership.stopped`."""

    reason: str


class Follow(NamedTuple):
    """Drop the writer and the recovered shard, if any. Read on from where the copy stands, with a new appender."""

    reason: str


class End(NamedTuple):
    """End the process at once, without a tidy close."""

    reason: str


Action = Ask | Append | Recover | Serve | StopServing | Follow | End


class Proof(NamedTuple):
    """That this process leads."""

    epoch: int
    """The offset of its marker."""
    age_ms: int
    """Since the last record that counts was appended."""
    alone_ms: int
    """Since this process last read a record of another reign, or began."""


class _Vacancy(NamedTuple):
    """Why nobody leads, as far as the log tells."""

    since_ms: int
    to: str = ""
    """The host that may claim first."""
    own: bool = False
    """This node may claim at once: nobody else led."""


FIRST_IN_LINE: Final = 0


class Leadership:
    """One shard in one process: tell it what happens, then call :meth:`step` and do what it returns, in that order.

    Call :meth:`step` first in each round of the process's loop, before any work is taken: after a pause it may say that this process must not
    serve. Call it again after what it has returned was done or anything was told, at ``next_due`` at the latest.

    ``rank`` is its place in the line of standbys, ``wants`` whether it should ask the leader for the shard, ``figures`` goes into beats: set
    them at any time.
    """

    def __init__(
        self, node: Node, now_ms: int, limits: LeadershipLimits | None = None, epoch: int = -1, last: Node | None = None
    ) -> None:
        """``epoch``: of the copy's position, -1 if it begins with the log. ``last``: the node whose marker that was, if the copy has kept it."""
        self.node, self.limits = node, limits or LeadershipLimits()
        self.state = State.FOLLOWS
        self.serves = False
        self.rank = FIRST_IN_LINE
        self.wants = False
        self.figures = Figures()
        self.leader: Node | None = last
        """The node of the last marker; None: it is not known."""
        self.leader_figures = Figures()
        self.epoch = epoch
        """The last marker's offset; -1: none was read."""
        self._actions: list[Action] = []
        self._stepped_ms = self._heard_ms = self._others_ms = now_ms
        self._retires = False
        self._vacancy: _Vacancy | None = None
        self._not_before_ms = now_ms
        self._wished_ms = now_ms - self.limits.wish_ms
        # the partition
        self._next_offset, self._end = 0, -1
        self._asked_ms = now_ms - self.limits.ask_idle_ms
        """When this machine last asked."""
        self._answered_ms: int | None = None
        """When it asked the question of the last answer."""
        self._waits = False
        """Whether no answer has come since it asked."""
        self._answering_ms: int | None = None
        """Since when each answer came in time."""
        self._reached_end = False
        # a claim
        self._claim = 0
        self._claimed_ms = now_ms
        self._marked = False
        self._mark: int | None = None
        """Where the marker is, if the log has told."""
        self._found_ms: int | None = None
        """When this node's own marker was read, and behind any question before."""
        # a reign
        self._appended, self._confirmed = 0, 0
        self._turned = 0
        """The last number of a turn with changes of the shard."""
        self._appends: deque[tuple[int, int]] = deque()
        """Numbers with the time when they were appended, rising; not each of them."""
        self._beat_ms, self._beat_number = now_ms, 0
        self._proof_ms = now_ms
        self._recovered = self._stopped = False
        self._successor: str | None = None
        self._leaves_number = 0

    # --- what happened ------------------------------------------------------------------------------------------------

    def read(self, counted: Counted, now_ms: int) -> None:
        """Take what the tail has read, in any state."""
        self._listen(now_ms)
        self._heard_ms = now_ms
        self._next_offset = max(self._next_offset, counted.position.offset + 1)
        if counted.kind is Kind.MARKER:
            self._read_marker(counted, now_ms)
            return
        if self._reigns():
            return  # its own
        self._others_ms = now_ms
        self.epoch, self._vacancy = counted.position.epoch, None
        if counted.kind is Kind.BEAT and (beat := decode_body(counted.body, Beat)):
            self.leader, self.leader_figures = beat.node, beat.figures
        elif counted.kind is Kind.LEAVES:
            leaves = decode_body(counted.body, Leaves)
            self._vacancy = _Vacancy(now_ms, leaves.successor if leaves else "")
            self.leader = leaves.node if leaves else None

    def tail(self, next_offset: int, end: int | None, asked_ms: int | None, now_ms: int) -> None:
        """Take where the tail is: the next offset it will read, and what the partition has answered (see ``log.partition``)."""
        self._listen(now_ms)
        self._next_offset = next_offset
        if end is None or asked_ms is None or (self._answered_ms is not None and asked_ms <= self._answered_ms):
            return
        if self._answered_ms is None or asked_ms - self._answered_ms > self._gap_ms_max():
            self._answering_ms = asked_ms
        self._answered_ms, self._end, self._waits = asked_ms, end, False

    def marked(self, offset: int | None, now_ms: int) -> None:
        """Take that the marker is in the log, at ``offset`` if the log tells."""
        self._listen(now_ms)
        if self.state is State.CLAIMS:
            self._marked, self._mark = True, offset

    def mark_failed(self, reason: str, now_ms: int) -> None:
        """Take that the marker is in the log or not. If it is found later, it counts as a vacancy."""
        self._listen(now_ms)
        if self.state is State.CLAIMS:
            self._give_up(f"its marker may be in the log or not: {reason}", now_ms, own=self._found_ms is not None)
            self._not_before_ms = now_ms + self.limits.again_ms

    def appended(self, number: int, now_ms: int, *, turn: bool = True) -> None:
        """Take the last number that the writer has given, with each turn, beat or LEAVES; ``turn``: it has changes of the shard."""
        self._listen(now_ms)
        self._appended = number
        if turn:
            self._turned = number
        if not self._appends or now_ms - self._appends[-1][1] >= self.limits.beat_ms // 10:
            self._appends.append((number, now_ms))

    def confirmed(self, number: int, now_ms: int) -> None:
        """Take the last number that counts."""
        self._listen(now_ms)
        self._confirmed = number
        while self._appends and self._appends[0][0] <= number:
            self._proof_ms = max(self._proof_ms, self._appends.popleft()[1])

    def fenced(self, reason: str, now_ms: int) -> None:
        """Take that another marker was read behind this writer's own."""
        self._listen(now_ms)
        if self.state is State.CLAIMS:
            self._give_up(reason, now_ms)
        elif self._reigns() and self._confirmed >= self._turned:
            self._give_up(reason, now_ms)  # all turns that it has written count, so its copy is what others have
        elif self.state is not State.FOLLOWS:
            self.failed(reason)

    def failed(self, reason: str) -> None:
        """Take that an append of the writer has an unknown outcome, or anything else after which its copy can't go on."""
        if self.state is not State.ENDED:
            self._stop_serving(reason)
            self.state = State.ENDED
            self._actions.append(End(reason))

    def recovered(self, now_ms: int) -> None:
        """Take that the shard is ready to serve."""
        self._listen(now_ms)
        self._recovered = True

    def leave(self, successor: str, now_ms: int) -> None:
        """Give the shard up, to a host if one is named. No effect on who does not lead, or leaves already."""
        self._listen(now_ms)
        if self.state in {State.CLAIMS, State.LEADS} and self._successor is None:
            self._successor = successor

    def retire(self, successor: str, now_ms: int) -> None:
        """Like :meth:`leave`, and never claim again: the process is about to end."""
        self._retires = True
        self.leave(successor, now_ms)

    def stopped(self, now_ms: int) -> None:
        """Take that no turn will come any more, after a :class:`StopServing` in state LEAVES."""
        self._listen(now_ms)
        self._stopped = True

    def wished(self, body: bytes) -> str | None:
        """Return the host that asks for the shard by a WISH; None if this leader has no cause to go."""
        wish = decode_body(body, Wish)
        if wish is None or not self.serves or self.state is not State.LEADS or self._successor is not None:
            return None
        return wish.host if wish.epoch == self.epoch and wish.host not in {"", self.node.host} else None

    # --- what to do ---------------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> list[Action]:
        """Return what is to be done now, in this order."""
        self._listen(now_ms)
        if self.state is State.FOLLOWS:
            self._follow(now_ms)
        if self.state is State.CLAIMS:
            self._check_claim(now_ms)
        if self._reigns():
            self._lead(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def next_due(self, now_ms: int) -> int | None:
        """Return when :meth:`step` has something to do although nothing happens; None: never."""
        if self._actions:
            return now_ms
        dues: list[int] = []
        if self.state is State.FOLLOWS or (self.state is State.CLAIMS and self._marked and self._found_ms is not None):
            dues.append(self._ask_due_ms(now_ms))
        if self.state is State.FOLLOWS:
            claim = self._claim_due_ms()
            dues += [due for due in (claim, claim - self._watch_ms()) if due > now_ms]
            if self._may_wish():
                dues.append(self._wished_ms + self.limits.wish_ms)
        if self._reigns() and self._beats():
            dues.append(self._beat_ms + self.limits.beat_ms)
        if self.serves:
            dues.append(self._proof_ms + self.limits.proof_ms_max)
        return max(min(dues), now_ms) if dues else None

    def proof(self, now_ms: int) -> Proof | None:
        """Return the proof that it leads, while it serves."""
        return Proof(self.epoch, now_ms - self._proof_ms, now_ms - self._others_ms) if self.serves else None

    @property
    def follows_closely(self) -> bool:
        """Whether it follows and has read all that the partition had when it last answered."""
        return self.state is State.FOLLOWS and self._at_end()

    # --- a standby ----------------------------------------------------------------------------------------------------

    def _listen(self, now_ms: int) -> None:
        """Notice when this process itself did not run: what it has not heard meanwhile tells nothing."""
        assert now_ms >= self._stepped_ms, f"the clock went back from {self._stepped_ms} to {now_ms}"
        if now_ms - self._stepped_ms > self.limits.pause_ms:
            self._heard_ms = now_ms
            self._answering_ms = None
            self._answered_ms = None
        self._stepped_ms = now_ms

    def _read_marker(self, counted: Counted, now_ms: int) -> None:
        marker = decode_body(counted.body, Marker)
        offset = counted.position.offset
        mine = marker is not None and marker.node == self.node
        if self._reigns():
            if offset > self.epoch:
                self.fenced(f"another marker is at offset {offset}", now_ms)
            return
        self.epoch, self._vacancy = offset, None
        self.leader, self.leader_figures = marker.node if marker else None, Figures()
        if self.state is State.CLAIMS and (offset == self._mark or (mine and marker and marker.claim == self._claim)):
            self._found_ms = max(now_ms, self._asked_ms + 1)
            return
        self._others_ms = now_ms
        if self.state is State.CLAIMS and self._found_ms is not None:
            self._give_up(f"another marker is at offset {offset}, behind this node's own", now_ms)
        elif mine:  # of a claim that was given up: nobody leads by it
            self._vacancy = _Vacancy(now_ms, own=True)

    def _follow(self, now_ms: int) -> None:
        if self._fresh(now_ms) and self._at_end() and not self._reached_end:
            self._reached_end = True
            if self.leader is not None and self.leader.name == self.node.name and self._vacancy is None:
                self._vacancy = _Vacancy(now_ms, own=True)
            elif self.epoch < 0:
                self._vacancy = _Vacancy(now_ms)
        if self._may_claim(now_ms):
            self._begin_claim(now_ms)
            return
        if now_ms >= self._ask_due_ms(now_ms):
            self._ask(now_ms)
        if self._may_wish() and now_ms >= self._wished_ms + self.limits.wish_ms:
            self._wished_ms = now_ms
            self._append(Kind.WISH, Wish(self.node.host, self.epoch))

    def _at_end(self) -> bool:
        return self._answered_ms is not None and self._next_offset >= self._end

    def _fresh(self, now_ms: int) -> bool:
        """Whether the partition has just answered."""
        return self._answered_ms is not None and now_ms - self._answered_ms <= self.limits.answer_ms_max

    def _gap_ms_max(self) -> int:
        """Between two answers, if the partition answers all the time."""
        return self.limits.ask_ms + self.limits.answer_ms_max

    def _claim_due_ms(self) -> int:
        limits, vacancy = self.limits, self._vacancy
        rank_ms = min(self.rank, limits.ranks_max) * limits.rank_ms
        if vacancy is None:
            due = self._heard_ms + limits.silence_ms + rank_ms
        elif vacancy.own or vacancy.to == self.node.host:
            due = vacancy.since_ms
        elif self.leader == self.node:
            due = vacancy.since_ms + limits.silence_ms  # it has just left, and others shall have it
        else:
            due = vacancy.since_ms + (limits.succession_ms if vacancy.to else 0) + rank_ms
        return max(due, self._not_before_ms)

    def _may_claim(self, now_ms: int) -> bool:
        if self._retires or now_ms < self._claim_due_ms() or not self._fresh(now_ms) or not self._at_end():
            return False
        assert self._answered_ms is not None
        if self._vacancy is not None:
            return self._answered_ms >= self._vacancy.since_ms
        return self._answering_ms is not None and now_ms - self._answering_ms >= self.limits.answering_ms

    def _watch_ms(self) -> int:
        """How long before a claim the questions have to come often."""
        return self.limits.answering_ms + self._gap_ms_max()

    def _ask_due_ms(self, now_ms: int) -> int:
        """When to ask. A question that was under way too early tells nothing: ask again when it is answered."""
        need_ms = self._found_ms if self.state is State.CLAIMS else self._vacancy.since_ms if self._vacancy else None
        if need_ms is not None and (self._answered_ms is None or self._answered_ms < need_ms):
            if self._asked_ms < need_ms or not self._waits:
                return max(need_ms, now_ms)
        elif self.state is State.FOLLOWS and self._reached_end and now_ms < self._claim_due_ms() - self._watch_ms():
            return self._asked_ms + self.limits.ask_idle_ms
        return self._asked_ms + self.limits.ask_ms

    def _ask(self, now_ms: int) -> None:
        self._asked_ms, self._waits = now_ms, True
        self._actions.append(Ask())

    def _append(self, kind: Kind, body: Body) -> None:
        self._actions.append(Append(kind, encode_body(body)))

    def _may_wish(self) -> bool:
        """Whether it wants to lead and could: a leader that does not speak reads no wishes."""
        speaks = self._stepped_ms - self._heard_ms <= 2 * self.limits.beat_ms
        return self.wants and not self._retires and self._vacancy is None and self.epoch >= 0 and speaks and self._at_end()

    # --- a claim ------------------------------------------------------------------------------------------------------

    def _begin_claim(self, now_ms: int) -> None:
        self.state = State.CLAIMS
        self._claim += 1
        self._claimed_ms = now_ms
        self._marked, self._mark, self._found_ms, self._successor = False, None, None, None
        self._append(Kind.MARKER, Marker(self.node, self._claim))

    def _check_claim(self, now_ms: int) -> None:
        """Lead if the own marker was read, and was the last one when the partition was asked after that."""
        answered_ms = self._answered_ms
        if self._found_ms is None or not self._marked:
            return
        if answered_ms is not None and answered_ms >= self._found_ms and self._fresh(now_ms) and self._at_end():
            self._begin_reign()
        elif now_ms >= self._ask_due_ms(now_ms):
            self._ask(now_ms)

    def _give_up(self, reason: str, now_ms: int, *, own: bool = False) -> None:
        """Go back to following. The copy of the shard has nothing that does not count."""
        self._stop_serving(reason)
        self.state, self._successor = State.FOLLOWS, None
        self._heard_ms, self._next_offset, self._answered_ms = now_ms, 0, None
        self._vacancy = _Vacancy(now_ms, own=True) if own else None
        self._actions.append(Follow(reason))

    # --- a reign ------------------------------------------------------------------------------------------------------

    def _begin_reign(self) -> None:
        self.state = State.LEADS
        self._appended = self._confirmed = self._turned = self._beat_number = self._leaves_number = 0
        self._recovered = self._stopped = False
        self._appends.clear()
        self._proof_ms = self._beat_ms = self._claimed_ms
        self._actions.append(Recover(self.epoch))

    def _lead(self, now_ms: int) -> None:
        proved = now_ms - self._proof_ms < self.limits.proof_ms_max
        if self.serves and not proved:
            self._stop_serving(f"nothing was confirmed that was appended in the last {self.limits.proof_ms_max / 1000:g} s")
        if self._successor is not None and self.state is State.LEADS:
            self.state = State.LEAVES
            self.serves = False
            self._actions.append(StopServing("the shard goes to another host"))
        if self.state is State.LEADS and self._recovered and not self.serves and proved:
            self.serves = True
            self._actions.append(Serve())
        if self.state is State.LEAVES and self._stopped and self._confirmed >= self._appended:
            self._end_reign(now_ms)
        elif self._beats() and now_ms >= self._beat_ms + self.limits.beat_ms:
            self._beat_ms, self._beat_number = now_ms, self._appended + 1
            self._append(Kind.BEAT, Beat(self.node, self.figures))

    def _reigns(self) -> bool:
        return self.state is State.LEADS or self.state is State.LEAVES

    def _beats(self) -> bool:
        """Whether another beat makes sense: one on the way is enough, and a LEAVES is the last record."""
        return self._confirmed >= self._beat_number and not self._leaves_number

    def _end_reign(self, now_ms: int) -> None:
        """Append the LEAVES, or follow if it counts."""
        if not self._leaves_number:
            self._leaves_number = self._appended + 1
            self._append(Kind.LEAVES, Leaves(self.node, self._successor or ""))
        elif self._confirmed >= self._leaves_number:
            to = self._successor or ""
            self._give_up("the shard was left", now_ms)
            self._vacancy = _Vacancy(now_ms, to)

    def _stop_serving(self, reason: str) -> None:
        if self.serves:
            self.serves = False
            self._actions.append(StopServing(reason))

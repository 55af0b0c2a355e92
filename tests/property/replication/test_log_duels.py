"""Writers duel for one log, and all who read it agree on what was written.

The log is a list. Each writer has a wire to it that keeps the order, but may hold appends back for any time, also beyond the end of its
writer, lose them with all behind them, and write them twice, at once or much later. It tells of them late, in another order, without an
offset, or that they failed. Writers may crash at any time, between the parts of a batch too. Readers read at different speeds and begin
again from their last position. How often all that happens differs between runs, because a run in which everything happens has no writer
that gets far.

The model has no rule of its own. It knows what each writer wanted to write, and what it has confirmed.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_worker.log.records import LogRecord, RecordKind, decode, encode
from fila_worker.log.rule import START, FencedError, Position, Rule, UnknownOutcomeError, Writer

pytestmark = pytest.mark.whole

RECORD_BYTES_MAX = 64
"""So small that most batches are split."""
MARKER = encode(LogRecord(RecordKind.MARKER, 0, 0))
WISH = encode(LogRecord(RecordKind.TRANSFER_REQUEST, 0, 0))


@dataclass
class Turn:
    """What a writer wanted to write, and the last of its numbers."""

    body: bytes
    number: int


class Reader:
    """A reader that applies what counts. It stores its position with that, as a copy of a shard does."""

    def __init__(self, log: list[bytes]) -> None:
        self.log, self.rule = log, Rule()
        self.stored: Position = START
        self.applied: list[tuple[int, bytes]] = []
        """Epoch and body of each batch."""

    def read(self, count: int) -> None:
        for offset in range(self.rule.next_offset, min(self.rule.next_offset + count, len(self.log))):
            counted = self.rule.read(offset, decode(self.log[offset], offset))
            if counted is not None:
                self.stored = counted.position
            if counted is not None and counted.kind is RecordKind.BATCH:
                self.applied.append((counted.position.epoch, counted.body))
        assert self.rule.position == self.stored

    def begin_again(self) -> None:
        self.rule = Rule(self.stored)


@dataclass
class Contender:
    """A writer with its wire."""

    name: int
    log: list[bytes]
    rule: Rule
    wire: deque[tuple[int, bytes]] = field(default_factory=lambda: deque([(0, MARKER)]))
    """What was appended and has not reached the log, with its numbers."""
    reports: deque[tuple[int, int | None, bool]] = field(default_factory=deque)
    """Numbers, offsets, and whether the append failed."""
    arrived: list[bytes] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    writer: Writer | None = None
    end: str = ""
    fenced_by: int | None = None
    cut: bool = False
    """Whether an append has vanished: nothing behind it may reach the log."""

    @property
    def leads(self) -> bool:
        return self.writer is not None and not self.end

    @property
    def idle(self) -> bool:
        return self.leads and not self.wire and not self.reports

    def write(self, size: int) -> None:
        assert self.writer is not None
        if self.cut:
            return
        body = (b"%d:%d|" % (self.name, len(self.turns))).ljust(size, b".")
        first = self.writer.appended + 1
        self.wire.extend(enumerate(self.writer.batch(body), first))
        self.turns.append(Turn(body, self.writer.appended))

    def beat(self) -> None:
        assert self.writer is not None
        if self.cut:
            return
        self.wire.append((self.writer.appended + 1, self.writer.beat()))

    def arrive(self) -> int:
        """Let the first append on the wire reach the log."""
        self.arrived.append(self.wire[0][1])
        self.log.append(self.wire[0][1])
        return len(self.log) - 1

    def hear(self) -> None:
        """Take the next report."""
        number, offset, failed = self.reports.popleft()
        try:
            if self.writer is None:
                self._lead(offset, failed=failed)
            elif failed:
                self.writer.failed(number, "the log said so")
            else:
                self.writer.report(number, offset)
                self._look()
        except FencedError as error:
            self.end, self.fenced_by = "fenced", error.marker
        except UnknownOutcomeError:
            assert failed, "only a failed append has an unknown outcome here"
            self.end = "unknown"
        self._release()

    def _lead(self, offset: int | None, *, failed: bool) -> None:
        if failed or offset is None:
            self.end = "unknown"
            return
        for at in range(self.rule.next_offset, offset + 1):
            self.rule.read(at, decode(self.log[at], at))
        self.writer = Writer(self.rule.position, RECORD_BYTES_MAX)
        assert self.writer.epoch == offset

    def _look(self) -> None:
        assert self.writer is not None
        while (at := self.writer.read_from) is not None:
            if at == len(self.log):
                self.writer.reached_end()
            self.writer.read(at, decode(self.log[at], at))

    def _release(self) -> None:
        """Let the effects of confirmed turns out."""
        confirmed = self.writer.confirmed if self.writer is not None else 0
        self.released += [turn.body for turn in self.turns[len(self.released) :] if turn.number <= confirmed]


class Duel:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log: list[bytes] = []
        self.readers = [Reader(self.log), Reader(self.log)]
        self.contenders: list[Contender] = []
        self.calm = self.random.choice([0.0, 0.5, 0.9, 0.97])
        """How likely an append arrives and is reported as it should be."""
        often = {
            name: self.random.choice([0, 1, 4])
            for name in ("beat", "wish", "arrive_once_more", "crash", "read", "begin_again")
        }
        self.actions = {"claim": 1, "write": 10, "arrive": 10, "hear": 10, **often}

    def run(self, steps: int) -> None:
        self.claim()
        for name in self.random.choices(list(self.actions), list(self.actions.values()), k=steps):
            getattr(self, name)()
            self.check_that_readers_agree()
        self.check()

    def pick(self) -> Contender:
        """One of the last writers, most often the last one."""
        return self.contenders[-min(self.random.choice([1, 1, 1, 2, 2, 3, 4]), len(self.contenders))]

    def claim(self) -> None:
        """Let a new writer begin, with the copy of a reader or without one; often its marker comes through at once."""
        position = self.random.choice([START, *(reader.stored for reader in self.readers)])
        self.contenders.append(Contender(len(self.contenders), self.log, Rule(position)))
        if self.random.random() < 0.7:
            self.arrive_well(self.contenders[-1])
            self.contenders[-1].hear()

    def write(self) -> None:
        contender = self.pick()
        for _ in range(self.random.randint(1, 3)):
            if contender.leads:
                contender.write(self.random.choice([0, 20, 20, 40, 80, 150]))

    def beat(self) -> None:
        contender = self.pick()
        if contender.leads:
            contender.beat()

    def wish(self) -> None:
        self.log.append(WISH)

    def arrive(self) -> None:
        contender = self.pick()
        for _ in range(min(self.random.randint(1, 8), len(contender.wire))):
            if self.random.random() < self.calm:
                self.arrive_well(contender)
            elif contender.wire:
                self.arrive_badly(contender)

    def arrive_well(self, contender: Contender) -> None:
        if contender.wire:
            offset = contender.arrive()
            contender.reports.append((contender.wire.popleft()[0], offset, False))

    def arrive_badly(self, contender: Contender) -> None:
        how = self.random.choice(["silent", "first", "second", "silent", "first", "second", "failed", "vanished"])
        number = contender.wire[0][0]
        offset: int | None = None
        if how == "vanished":
            contender.wire.clear()
            contender.cut = True
        else:
            offset = contender.arrive()
            second = contender.arrive() if how in {"first", "second"} else offset
            offset = {"silent": None, "second": second}.get(how, offset)
            contender.wire.popleft()
        contender.reports.append((number, offset, how in {"failed", "vanished"}))

    def arrive_once_more(self) -> None:
        arrived = self.pick().arrived
        if arrived:
            self.log.append(self.random.choice(arrived))

    def hear(self) -> None:
        contender = self.pick()
        for _ in range(self.random.randint(1, 10)):
            if contender.reports and not contender.end:
                if self.random.random() > self.calm:
                    self.random.shuffle(contender.reports)
                contender.hear()

    def crash(self) -> None:
        """What is on the wire may arrive later."""
        contender = self.pick()
        contender.end = contender.end or "crashed"
        for _ in range(self.random.randint(0, len(contender.wire))):
            contender.wire.pop()

    def read(self) -> None:
        self.random.choice(self.readers).read(self.random.randint(1, 20))

    def begin_again(self) -> None:
        self.random.choice(self.readers).begin_again()

    def check_that_readers_agree(self) -> None:
        one, other = (reader.applied for reader in self.readers)
        shorter = min(len(one), len(other))
        assert one[:shorter] == other[:shorter]

    def check(self) -> None:
        for reader in self.readers:
            reader.read(len(self.log))
        one, other = self.readers
        assert one.applied == other.applied
        assert len(one.applied) == len({body for _, body in one.applied}), "something counts twice"
        assert [epoch for epoch, _ in one.applied] == sorted(epoch for epoch, _ in one.applied)
        for contender in self.contenders:
            wanted = [turn.body for turn in contender.turns]
            epoch = contender.writer.epoch if contender.writer else -1
            replayed = [body for by, body in one.applied if by == epoch]
            assert replayed == wanted[: len(replayed)]
            assert contender.released == replayed[: len(contender.released)], "what was confirmed is not replayed"
            if contender.writer is not None:
                self.check_that_its_copy_can_go_on(contender.writer)
            if contender.idle:
                assert contender.released == replayed == wanted
            if contender.fenced_by is not None:
                assert epoch < contender.fenced_by
                assert self.log[contender.fenced_by] == MARKER, "it was ended without cause"

    def check_that_its_copy_can_go_on(self, writer: Writer) -> None:
        """A copy that has what is confirmed becomes the same as others when it reads on."""
        copy = Reader(self.log)
        copy.stored = writer.position
        copy.begin_again()
        copy.read(len(self.log))
        applied = self.readers[0].applied
        assert copy.applied == applied[len(applied) - len(copy.applied) :]
        earlier = [body for epoch, body in applied if epoch == writer.epoch][: self.turns_up_to(writer)]
        assert [(writer.epoch, body) for body in earlier] + copy.applied == [
            each for each in applied if each[0] >= writer.epoch
        ]

    def turns_up_to(self, writer: Writer) -> int:
        (turns,) = (each.turns for each in self.contenders if each.writer is writer)
        return sum(turn.number <= writer.position.number for turn in turns)


@given(st.integers(0, 2**32))
@settings(max_examples=1500)
def test_what_is_confirmed_is_what_all_replay(seed: int) -> None:
    Duel(seed).run(150)

"""Single cases of the rule. What it promises as a whole is in ``tests/property/replication/test_log_duels.py`` and ``test_log_losses.py``."""

import pytest

from fila_worker.log.records import Before, LogRecord, RecordError, RecordKind, decode, encode
from fila_worker.log.rule import START, Counted, FencedError, LostError, Position, Rule, UnknownOutcomeError, Writer

MARKER = LogRecord(RecordKind.MARKER, 0, 0)
WISH = LogRecord(RecordKind.TRANSFER_REQUEST, 0, 0, b"host-b")


def batch(
    epoch: int, number: int, body: bytes = b"x", part: int = 0, parts: int = 1, before: Before | None = None
) -> LogRecord:
    return LogRecord(RecordKind.BATCH, epoch, number, body, (before or Before()) if number == 1 else None, part, parts)


def bodies(records: list[LogRecord], rule: Rule | None = None) -> list[bytes]:
    """What counts of a log."""
    rule = rule or Rule()
    counted = [rule.read(offset, record) for offset, record in enumerate(records, rule.next_offset)]
    return [each.body for each in counted if each is not None and each.kind is RecordKind.BATCH]


def test_a_record_counts_after_its_marker_in_its_order() -> None:
    rule = Rule()
    assert rule.read(0, MARKER) == Counted(Position(0, 0, 0), RecordKind.MARKER, b"")
    assert rule.read(1, batch(0, 1, b"one")) == Counted(Position(1, 0, 1), RecordKind.BATCH, b"one")
    assert rule.read(2, LogRecord(RecordKind.BEAT, 0, 2, b"load")) == Counted(Position(2, 0, 2), RecordKind.BEAT, b"load")
    assert rule.read(3, batch(0, 1, b"one")) is None
    assert rule.read(4, MARKER) == Counted(Position(4, 4, 0, Before(0, 2)), RecordKind.MARKER, b"")
    assert rule.read(5, batch(0, 3, b"late")) is None
    assert rule.position == Position(4, 4, 0, Before(0, 2))
    assert rule.read(6, LogRecord(RecordKind.LEAVES, 4, 1, b"", Before(0, 2))) == Counted(
        Position(6, 4, 1, Before(0, 2)), RecordKind.LEAVES, b""
    )


def test_a_batch_counts_with_its_last_part() -> None:
    rule = Rule()
    rule.read(0, MARKER)
    assert rule.read(1, batch(0, 1, b"one ", 0, 3)) is None
    assert rule.read(2, batch(0, 2, b"two ", 1, 3)) is None
    assert rule.position == Position(0, 0, 0)
    assert rule.read(3, batch(0, 2, b"two ", 1, 3)) is None
    assert rule.read(4, batch(0, 3, b"three", 2, 3)) == Counted(Position(4, 0, 3), RecordKind.BATCH, b"one two three")
    assert rule.position == Position(4, 0, 3)


def test_a_wish_never_counts_and_moves_no_position() -> None:
    rule = Rule()
    assert rule.read(0, WISH) is None
    assert rule.position == START
    records = [MARKER, batch(1, 1, b"one ", 0, 2), WISH, batch(1, 2, b"two", 1, 2), WISH]
    assert bodies(records, rule) == [b"one two"]
    assert (rule.position, rule.next_offset) == (Position(4, 1, 2), 6)


def test_a_reader_begins_again_before_a_wish() -> None:
    rule = Rule(Position(0, 0, 0))
    assert [rule.read(0, MARKER), rule.read(1, WISH), rule.position] == [None, None, Position(0, 0, 0)]


def test_a_new_writer_drops_an_unfinished_batch() -> None:
    unfinished = [MARKER, batch(0, 1, b"half", 0, 2), MARKER, batch(0, 2, b"other half", 1, 2)]
    assert bodies([*unfinished, batch(2, 1, b"new", before=Before(0, 1))]) == [b"new"]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (batch(0, 2, b"c", 2, 3), "it is a BATCH with part 3 of 3, but part 2 of 3 of a batch must come here"),
        (batch(0, 2, b"b", 1, 2), "it is a BATCH with part 2 of 2, but part 2 of 3 of a batch must come here"),
        (batch(0, 2, b"a"), "it is a BATCH with part 1 of 1, but part 2 of 3 of a batch must come here"),
        (LogRecord(RecordKind.BEAT, 0, 2), "it is a BEAT with part 1 of 1, but part 2 of 3 of a batch must come here"),
        (batch(0, 2, b"bbbb", 1, 3), "the parts of its batch are longer than 4 bytes together"),
    ],
)
def test_parts_that_do_not_fit_are_refused_each_time(record: LogRecord, problem: str) -> None:
    rule = Rule(batch_bytes_max=4)
    rule.read(0, MARKER)
    rule.read(1, batch(0, 1, b"a", 0, 3))
    for _ in range(2):
        with pytest.raises(RecordError, match=problem):
            rule.read(2, record)
    rule.read(2, batch(0, 2, b"bb", 1, 3))
    assert rule.read(3, batch(0, 3, b"c", 2, 3)) == Counted(Position(3, 0, 3), RecordKind.BATCH, b"abbc")


def test_a_part_without_its_batch_is_refused() -> None:
    with pytest.raises(RecordError, match="it is a BATCH with part 2 of 3, but part 1 of 3 of a batch must come here"):
        bodies([MARKER, batch(0, 1, b"b", 1, 3)])


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([MARKER, batch(0, 2)], "at offset 1 of the log: it has number 2 of epoch 0, but 1 is missing before it"),
        ([batch(0, 1)], "it is of epoch 0, but no marker was read at that offset; the last one was at -1"),
        ([MARKER, MARKER, batch(1, 1, before=Before(0, 4))], "has read up to number 4 of epoch 0 before it began, but here that was the beginning"),
        ([MARKER, batch(0, 1), MARKER, batch(2, 1)], "has read up to the beginning of the log before it began, but here that was number 1 of epoch 0"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(log: list[LogRecord], problem: str) -> None:
    with pytest.raises(LostError, match=problem) as lost:
        bodies(log)
    assert lost.value.details == {"offset": len(log) - 1}


def test_epochs_without_records_hide_no_loss() -> None:
    rule = Rule(Position(5, 3, 2))
    log = [batch(3, 2), MARKER, MARKER, batch(7, 1, before=Before(3, 3))]
    with pytest.raises(
        LostError, match="has read up to number 3 of epoch 3 before it began, but here that was number 2 of epoch 3"
    ):
        bodies(log, rule)


def test_a_log_that_goes_back_is_refused() -> None:
    rule = Rule()
    rule.read(7, MARKER)
    with pytest.raises(LostError, match="the log goes back: offset 8 or a later one must come here"):
        rule.read(7, MARKER)


@pytest.mark.parametrize(
    ("position", "same", "other"),
    [
        (Position(5, 3, 2), batch(3, 2), batch(3, 1)),
        (Position(5, 3, 2), batch(3, 2), MARKER),
        (Position(5, 5, 0), MARKER, batch(3, 2)),
    ],
)
def test_who_begins_again_finds_the_record_of_its_position(position: Position, same: LogRecord, other: LogRecord) -> None:
    assert Rule(position).next_offset == 5
    for offset, record in ((5, other), (6, same)):
        with pytest.raises(LostError, match=r"a copy of the shard ends with .* at offset 5, and another record is here"):
            Rule(position).read(offset, record)
    rule = Rule(position)
    assert rule.read(5, same) is None
    assert rule.next_offset == 6
    assert rule.position == position


# --- the writer's half ------------------------------------------------------------------------------------------------


def leading() -> Writer:
    return Writer(Position(4, 4, 0, Before(0, 2)), 64)


def test_the_first_record_names_what_was_before() -> None:
    writer = leading()
    first, second = decode(writer.beat(b"load"), 9), decode(writer.leaves(), 9)
    assert first == LogRecord(RecordKind.BEAT, 4, 1, b"load", Before(0, 2))
    assert second == LogRecord(RecordKind.LEAVES, 4, 2)
    parts = [decode(record, 9) for record in leading().batch(b"x" * 90)]
    assert [(part.number, part.before, part.part, part.parts) for part in parts] == [
        (1, Before(0, 2), 0, 3),
        (2, None, 1, 3),
        (3, None, 2, 3),
    ]


def test_the_next_offset_is_confirmed_without_reading() -> None:
    writer = leading()
    writer.batch(b"x" * 90)
    assert (writer.appended, writer.confirmed) == (3, 0)
    for number, offset in ((1, 5), (2, 6)):
        writer.report(number, offset)
        assert writer.read_from is None
        assert (writer.confirmed, writer.position) == (number, Position(4, 4, 0, Before(0, 2)))
    writer.report(3, 7)
    assert (writer.confirmed, writer.position) == (3, Position(7, 4, 3, Before(0, 2)))


def test_the_next_offset_with_a_later_number_is_read() -> None:
    """The record before it was not appended, so no reader takes this one."""
    writer = leading()
    writer.beat()
    later = decode(writer.beat(), 9)
    writer.report(2, 5)
    assert (writer.confirmed, writer.read_from) == (0, 5)
    with pytest.raises(LostError, match="it has number 2 of epoch 4, but 1 is missing before it"):
        writer.read(5, later)


def test_a_stray_append_of_an_older_writer_is_read_over() -> None:
    writer = leading()
    record = decode(writer.beat(), 9)
    writer.report(1, 6)
    assert writer.read_from == 5
    writer.read(5, batch(0, 3))
    assert (writer.read_from, writer.confirmed) == (6, 0)
    writer.read(6, record)
    assert (writer.read_from, writer.confirmed) == (None, 1)
    writer.beat()
    writer.report(2, 7)
    assert writer.confirmed == 2


def test_a_marker_ends_the_writer() -> None:
    writer = leading()
    writer.beat()
    writer.report(1, 6)
    with pytest.raises(FencedError, match="the writer of epoch 4 was replaced by the marker at offset 5: it must end"):
        writer.read(5, MARKER)


def test_what_is_there_twice_is_confirmed_once_and_read_to_the_place_reported() -> None:
    writer = leading()
    record = decode(writer.beat(), 9)
    writer.report(1, 6)
    writer.read(5, record)
    assert writer.read_from == 6
    writer.read(6, record)
    assert (writer.read_from, writer.confirmed) == (None, 1)
    writer.report(1, 5)
    assert (writer.read_from, writer.confirmed) == (None, 1)


def test_a_wish_makes_the_writer_read_and_nothing_else() -> None:
    writer = leading()
    beat = decode(writer.beat(), 9)
    writer.report(1, 6)
    writer.read(5, WISH)
    assert (writer.read_from, writer.confirmed) == (6, 0)
    writer.read(6, beat)
    assert (writer.read_from, writer.confirmed) == (None, 1)


def test_a_report_without_an_offset_is_looked_up() -> None:
    writer = leading()
    records = [decode(writer.beat(), 9), decode(writer.beat(), 9)]
    writer.report(2, None)
    for offset, record in enumerate(records, 5):
        assert writer.read_from == offset
        writer.read(offset, record)
    assert (writer.read_from, writer.confirmed) == (None, 2)


def test_what_is_not_there_has_an_unknown_outcome() -> None:
    writer = leading()
    writer.beat()
    writer.report(1, None)
    with pytest.raises(
        UnknownOutcomeError,
        match=r"number 1 of epoch 4 .*reported without an offset, and is not in the log.*must end at once",
    ):
        writer.reached_end()


def test_what_was_reported_further_on_is_waited_for() -> None:
    writer = leading()
    writer.beat()
    writer.report(1, 6)
    writer.reached_end()
    writer.read(5, batch(0, 3))
    with pytest.raises(UnknownOutcomeError, match="it was reported at offset 6, and is not there"):
        writer.read(6, batch(0, 3))


def test_a_log_that_goes_back_ends_the_writer() -> None:
    writer = leading()
    writer.beat()
    with pytest.raises(LostError, match="number 1 of epoch 4 was appended there, but up to 4 the log was full"):
        writer.report(1, 4)


def test_a_failed_append_ends_the_writer() -> None:
    writer = leading()
    writer.beat()
    with pytest.raises(UnknownOutcomeError, match=r"whether number 1 of epoch 4 is in the log is unknown \(timed out\)"):
        writer.failed(1, "timed out")


def test_an_append_behind_one_that_was_given_up_stops_all_readers() -> None:
    """So a log's client must never do that."""
    writer = Writer(Position(0, 0, 0), 64)
    given_up, later = writer.beat(), writer.beat()
    assert given_up != later
    with pytest.raises(LostError, match="it has number 2 of epoch 0, but 1 is missing before it"):
        bodies([MARKER, decode(later, 1)])


def test_nothing_is_there_at_the_start() -> None:
    assert Rule().position == START
    assert encode(MARKER) == bytes([1, 1]) + bytes(16)

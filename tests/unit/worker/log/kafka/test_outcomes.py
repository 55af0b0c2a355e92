"""Reports come in the order of the appends, each once, and none is given behind a failure."""

from fila_worker.log.kafka.appender import PAUSE_S_MAX, Outcomes
from fila_worker.log.partition import AppendReport


def begun(count: int) -> Outcomes:
    outcomes = Outcomes(patience_s=5, now_s=100)
    for number in range(1, count + 1):
        assert outcomes.begin(10) == (number, True)
    return outcomes


def test_reports_are_in_the_order_of_the_appends() -> None:
    outcomes = begun(3)
    outcomes.settle(2, 21)
    assert outcomes.take() == []
    outcomes.settle(1, 20)
    assert outcomes.take() == [AppendReport(1, 20), AppendReport(2, 21)]
    outcomes.settle(3, None)
    assert outcomes.take() == [AppendReport(3, None)]
    assert outcomes.take() == []


def test_bytes_without_an_outcome_are_counted() -> None:
    outcomes = begun(3)
    outcomes.settle(2, 21)
    assert outcomes.bytes == 30
    outcomes.settle(1, 20)
    assert outcomes.bytes == 10
    assert outcomes.fail(3, "no")
    assert not outcomes.fail(3, "no")
    assert outcomes.bytes == 0


def test_a_failure_fails_all_behind_it_but_nothing_before() -> None:
    outcomes = begun(4)
    outcomes.settle(3, 22)
    outcomes.fail(2, "refused")
    outcomes.settle(4, 23)
    assert outcomes.take() == []
    outcomes.settle(1, 20)
    first, *failed = outcomes.take()
    assert first == AppendReport(1, 20)
    assert [(report.append, report.offset) for report in failed] == [(2, None), (3, None), (4, None)]
    assert failed[0].error == "refused"
    assert all("append 2 failed (refused)" in report.error for report in failed[1:])
    assert outcomes.begin(10) == (5, False)
    assert [report.append for report in outcomes.take()] == [5]


def test_the_first_failure_is_the_one_that_counts() -> None:
    outcomes = begun(3)
    outcomes.fail(3, "third")
    outcomes.fail(2, "second")
    outcomes.fail_all("all")
    assert [report.error[:8] for report in outcomes.take()] == ["all", "append 1", "append 1"]
    outcomes.settle(1, 20)
    assert outcomes.take() == []


def test_what_has_its_outcome_is_not_failed_with_the_rest() -> None:
    outcomes = begun(2)
    outcomes.settle(1, 20)
    assert outcomes.fail_all("fatal")
    assert outcomes.take() == [AppendReport(1, 20), AppendReport(2, None, "fatal")]
    assert not outcomes.fail_all("again")


def test_with_nothing_under_way_later_appends_fail() -> None:
    outcomes = begun(0)
    assert outcomes.fail_all("fatal")
    assert outcomes.begin(10) == (1, False)
    assert outcomes.take() == [AppendReport(1, None, "fatal")]


def test_patience_is_over_for_the_oldest_append() -> None:
    outcomes = begun(1)
    for step in range(1, 7):
        assert outcomes.look(100 + step) == (step > 5)
    outcomes.settle(1, 20)
    assert not outcomes.look(107)
    outcomes.begin(10)
    assert not outcomes.look(108)


def test_a_pause_of_the_process_costs_little_patience() -> None:
    outcomes = begun(1)
    assert not outcomes.look(100 + 3600)
    for step in range(1, 5):
        assert outcomes.look(3700 + step * PAUSE_S_MAX) == (1 + step > 5)
    assert outcomes.look(3706)

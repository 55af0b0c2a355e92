"""Long work on dead letters: its pace, its end, and what becomes of errors."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from fila_cluster.errors import FilaError, QueueNotFoundError, ShardUnavailableError
from fila_cluster.ops.dashboard.dead_letters import jobs as jobs_module
from fila_cluster.ops.dashboard.dead_letters.jobs import (
    AT_ONCE,
    REMEMBERED_MAX,
    RUNNING_MAX,
    Budget,
    JobStep,
    LetterJob,
    LetterJobs,
    TooManyJobsError,
)


class Plan:
    """Answers one step after the other; ``asked``: for how many letters each time. A callable is called first."""

    def __init__(self, *steps: JobStep | FilaError | Callable[[], JobStep]) -> None:
        self.steps = list(steps)
        self.asked: list[int] = []

    async def advance(self, count: int) -> JobStep:
        self.asked.append(count)
        step = self.steps.pop(0)
        if isinstance(step, FilaError):
            raise step
        return step if isinstance(step, JobStep) else step()


def ran(job: LetterJob, plan: Plan) -> LetterJob:
    asyncio.run(job.run(plan))
    return job


def job(total: int, rate: float | None = None) -> LetterJob:
    return LetterJob(1, "orders.dlq", "redrive", "some", total, rate)


def test_a_job_ends_when_it_has_seen_all() -> None:
    plan = Plan(JobStep(AT_ONCE, AT_ONCE), JobStep(200, 150))
    over = ran(job(AT_ONCE + 200), plan)
    assert plan.asked == [AT_ONCE, 200]
    assert (over.state, over.moved, over.stayed, over.is_over) == ("done", AT_ONCE + 150, 50, True)


def test_a_job_ends_when_nothing_is_left() -> None:
    over = ran(job(100), Plan(JobStep(40, 40), JobStep(0, 0)))
    assert (over.state, over.moved, over.stayed) == ("done", 40, 0)


def test_a_stopped_job_asks_no_more() -> None:
    stopping = job(2000)

    def stop() -> JobStep:
        stopping.stop()
        return JobStep(AT_ONCE, AT_ONCE)

    ran(stopping, Plan(stop))
    assert (stopping.state, stopping.moved) == ("stopped", AT_ONCE)


def test_a_job_waits_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "RETRY_S", 0.0)
    over = ran(
        job(5), Plan(ShardUnavailableError("shard 0 is down"), ShardUnavailableError("shard 0 is down"), JobStep(5, 5))
    )
    assert (over.state, over.moved, over.trouble) == ("done", 5, "")


def test_a_job_gives_up_on_a_broker_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "RETRY_S", 0.0)
    monkeypatch.setattr(jobs_module, "GIVE_UP_S", -1.0)
    over = ran(job(5), Plan(ShardUnavailableError("shard 0 is down")))
    assert (over.state, over.moved, over.trouble) == ("failed", 0, "shard 0 is down")


def test_a_job_ends_with_an_error_that_will_not_go_away() -> None:
    over = ran(job(5), Plan(JobStep(2, 2), QueueNotFoundError("no queue 'orders.dlq'")))
    assert (over.state, over.moved, over.trouble) == ("failed", 2, "no queue 'orders.dlq'")


def test_a_budget_grants_what_its_rate_allows() -> None:
    budget, sent = Budget(20.0, 100.0), 0
    for tenth in range(50):
        granted = budget.granted(100.0 + tenth / 10)
        budget.spend(granted)
        sent += granted
    assert sent == 20 * 4.9 + 1


def test_a_slow_budget_grants_one_at_a_time() -> None:
    budget = Budget(0.5, 0.0)
    assert budget.granted(0.0) == 1
    budget.spend(1)
    assert budget.granted(0.0) == 0
    assert budget.wait_s() == 2.0
    assert budget.granted(2.0) == 1


def test_a_budget_makes_up_for_nothing() -> None:
    budget = Budget(10.0, 0.0)
    assert budget.granted(3600.0) == 10


def test_at_once_is_in_steps() -> None:
    assert Budget(None, 0.0).granted(0.0) == AT_ONCE


# --- all jobs ---------------------------------------------------------------------------------------------------------


def in_loop(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


async def over(*some: LetterJob) -> None:
    while not all(each.is_over for each in some):
        await asyncio.sleep(0)


def start(jobs: LetterJobs, work: Plan, dlq: str = "orders.dlq") -> LetterJob:
    return jobs.start(work, dlq=dlq, verb="redrive", what="some", total=1)


class Stuck(Plan):
    """Never answers."""

    async def advance(self, count: int) -> JobStep:
        await asyncio.Event().wait()
        raise AssertionError


def test_jobs_are_remembered_by_queue_the_newest_first() -> None:
    async def test() -> None:
        jobs = LetterJobs()
        first, second, other = (
            start(jobs, Plan(JobStep(1, 1))),
            start(jobs, Plan(JobStep(1, 1))),
            start(jobs, Plan(JobStep(1, 1)), "b.dlq"),
        )
        await over(first, second, other)
        assert jobs.of("orders.dlq") == [second, first]
        assert jobs.all() == [other, second, first]

    in_loop(test)


def test_no_more_jobs_than_are_useful_run_at_once() -> None:
    async def test() -> None:
        jobs = LetterJobs()
        for _ in range(RUNNING_MAX):
            start(jobs, Stuck())
        with pytest.raises(TooManyJobsError):
            start(jobs, Plan())

    in_loop(test)


def test_old_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        jobs = LetterJobs()
        for _ in range(REMEMBERED_MAX + 5):
            await over(start(jobs, Plan(JobStep(1, 1))))
        assert [each.number for each in jobs.all()] == list(range(REMEMBERED_MAX + 5, 5, -1))
        monkeypatch.setattr(jobs_module, "REMEMBERED_S", -1.0)
        assert jobs.all() == []

    in_loop(test)

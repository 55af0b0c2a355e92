"""When a shard asks its storage for disk space."""

from fila_worker.core.store import COMMITS_QUIET_MAX, LOOKS_BETWEEN, LOOKS_QUIET, DiskSpace

MIB = 1 << 20


def looks(space: DiskSpace, count: int, used: int, held: int, commits: int = 0) -> list[bool]:
    return [space.look(used, lambda: held, commits) for _ in range(count)]


def test_it_asks_once_it_is_quiet() -> None:
    space = DiskSpace(MIB)
    assert looks(space, LOOKS_QUIET, 100 * MIB, 0) == [False] * (LOOKS_QUIET - 1) + [True]


def test_a_busy_shard_waits() -> None:
    space = DiskSpace(MIB)
    commits = 0
    for _ in range(3 * LOOKS_BETWEEN):
        commits += COMMITS_QUIET_MAX + 1
        assert looks(space, 1, 100 * MIB, 0, commits) == [False]
    assert True in looks(space, LOOKS_QUIET + 1, 100 * MIB, 0, commits)


def test_little_waste_is_not_worth_it() -> None:
    assert True not in looks(DiskSpace(MIB), 100, MIB - 1, 0)
    assert True not in looks(DiskSpace(MIB), 100, 125 * MIB, 100 * MIB)
    assert True in looks(DiskSpace(MIB), 100, 127 * MIB, 100 * MIB)


def test_it_does_not_ask_again_and_again() -> None:
    asked = looks(DiskSpace(MIB), LOOKS_QUIET + 3 * LOOKS_BETWEEN, 100 * MIB, 0)
    assert asked.count(True) == 4


def test_the_queues_are_summed_rarely() -> None:
    summed: list[int] = []
    space = DiskSpace(MIB)
    for _ in range(10 * LOOKS_BETWEEN):
        space.look(100 * MIB, lambda: summed.append(1) or 100 * MIB, 0)  # type: ignore[func-returns-value]
    assert len(summed) <= 11

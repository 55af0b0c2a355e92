"""The files between a worker and the keeper of checkpoints: each step, and a kill before each change of the disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fila_worker.replication.log_checkpoints import exchange as module
from fila_worker.replication.log_checkpoints.exchange import OLD, Exchange, Kept, Made, Refused, Wanted, exchanges_of
from tests.support.cluster.cluster import eventually

MADE = Made("log", 3, 4, 100, 7, 90)
WANTED = Wanted("log", 3, 4, 50)


class Killed(BaseException):
    """The process is dead."""


def directory(path: Path, content: str) -> None:
    """Make a directory as a whole."""
    path.mkdir(parents=True)
    (path / "CURRENT").write_text(content)


def content(path: Path) -> str | None:
    return (path / "CURRENT").read_text() if path.exists() else None


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(tmp_path, 3)


def killed_before(change: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> bool:
    """Do something in a process that is killed before the nth change of the disk; return whether it came so far."""
    left = change

    def dying(do: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return do(*arguments, **named)

        return step

    with monkeypatch.context() as patched:
        for name in ("move", "remove", "write_whole", "mkdtemp"):
            patched.setattr(module, name, dying(getattr(module, name)))
        for name in ("rename", "unlink", "mkdir"):
            patched.setattr(Path, name, dying(getattr(Path, name)))
        try:
            action()
        except Killed:
            return True
    return False


def test_a_checkpoint_is_made_kept_and_released(exchange: Exchange, tmp_path: Path) -> None:
    assert (exchange.made(), exchanges_of(tmp_path)) == (None, [])
    exchange.make(MADE, lambda path: directory(path, "made"))
    assert (exchange.made(), content(exchange.made_path), exchange.kept()) == (MADE, "made", None)
    assert [each.shard for each in exchanges_of(tmp_path)] == [3]
    exchange.keep(Kept("log", 100, -1))
    assert exchange.kept() == Kept("log", 100, -1)
    exchange.release()
    assert (exchange.made(), exchange.kept(), content(exchange.made_path)) == (None, None, None)
    eventually(lambda: not exchange.removing, "it is removed")
    assert not [*tmp_path.glob(f"checkpoints/*/{OLD}*")]


def test_a_file_of_another_version_says_nothing(exchange: Exchange, tmp_path: Path) -> None:
    exchange.make(MADE, lambda path: directory(path, "made"))
    (tmp_path / "checkpoints/shard-0003/made.json").write_text('{"offset": "x"}')
    assert exchange.made() is None


def test_a_copy_is_replaced_by_what_was_brought(exchange: Exchange) -> None:
    directory(exchange.copy, "old")
    exchange.want(WANTED)
    exchange.refuse(Refused(50, "why"))
    assert (exchange.wanted(), exchange.refused()) == (WANTED, Refused(50, "why"))
    assert not exchange.adopt()
    assert content(exchange.copy) == "old", "it stays until another one is there as a whole"
    directory(exchange.brought_path.with_name("draft"), "new")
    exchange.bring(exchange.brought_path.with_name("draft"))
    assert exchange.adopt()
    assert (content(exchange.copy), exchange.wanted(), exchange.refused()) == ("new", None, None)
    assert not exchange.adopt()


@pytest.mark.parametrize("before", ["old", None])
def test_a_kill_while_the_copy_is_replaced_changes_nothing(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    change, killed = 0, True
    while killed:
        if before is not None:
            directory(exchange.copy, before)
        exchange.want(WANTED)
        exchange.refuse(Refused(50, "why"))
        directory(exchange.brought_path, "new")
        killed = killed_before(change, monkeypatch, exchange.adopt)
        if exchange.copy.exists():
            assert content(exchange.copy) in {before, "new"}
        again = Exchange(tmp_path, 3)
        again.sweep()
        assert (
            again.adopt() == (content(exchange.brought_path) is not None or not exchange.copy.exists() or killed)
            or not killed
        )
        assert (content(again.copy), again.wanted(), again.refused()) == ("new", None, None)
        again.discard()
        eventually(lambda again=again: not again.removing and not exchange.removing, "it is removed")  # type: ignore[misc]
        change += 1
    assert change >= 4, "there was something between"
    assert not [*tmp_path.glob(f"checkpoints/*/{OLD}*")]


def test_a_kill_while_a_checkpoint_is_made_or_released_changes_nothing(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def life() -> None:
        exchange.make(MADE, lambda path: directory(path, "made"))
        exchange.keep(Kept("log", 100, -1))
        exchange.release()

    change, killed = 0, True
    while killed:
        killed = killed_before(change, monkeypatch, life)
        again = Exchange(tmp_path, 3)
        again.sweep()
        if again.made() is not None:
            assert content(again.made_path) == "made", "what is said to be whole is whole"
        again.make(
            MADE._replace(offset=200) if hasattr(MADE, "_replace") else Made("log", 3, 4, 200, 7, 190),
            lambda path: directory(path, "next"),
        )
        made = again.made()
        assert made is not None
        assert (made.offset, content(again.made_path)) == (200, "next")
        again.release()
        eventually(lambda again=again: not again.removing and not exchange.removing, "it is removed")  # type: ignore[misc]
        change += 1
    assert change >= 6, "there was something between"

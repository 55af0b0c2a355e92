"""What a process sets up, what it tells, and the line that shows it."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import structlog
from rich.console import Console

from fila_cluster.app import App, Tally
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.work import logs, supervising, wire
from fila_cluster.run.work.loading import CannotLoadError, load, split_name
from fila_cluster.run.work.progress import ProgressBoard, shown

# --- loading --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a package of an app."""
    (tmp_path / "fila_test_shop").mkdir()
    (tmp_path / "fila_test_shop/__init__.py").touch()
    (tmp_path / "fila_test_shop/handlers.py").write_text(
        "from fila_cluster.app import App\nclass Holder:\n    app = App()\nqueue = 'orders'\n"
    )
    (tmp_path / "fila_test_shop/broken.py").write_text("import fila_test_nowhere\n")
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("fila_test_shop")]:
        del sys.modules[name]


def test_an_app_is_found_by_its_name(folder: Path) -> None:
    assert isinstance(load("fila_test_shop.handlers:Holder.app", folder), App)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fila_test_shop.nothing:app", "there is no module 'fila_test_shop.nothing' in"),
        ("fila_test_nowhere:app", "there is no module 'fila_test_nowhere' in"),
        ("fila_test_shop.handlers:nothing", "module 'fila_test_shop.handlers' has no 'nothing'"),
        ("fila_test_shop.handlers:queue", "is str, not a fila_cluster.app.App"),
    ],
)
def test_what_is_no_app_is_told(folder: Path, name: str, said: str) -> None:
    with pytest.raises(CannotLoadError, match=said):
        load(name, folder)


def test_what_a_module_lacks_is_the_modules_own_error(folder: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="fila_test_nowhere"):
        load("fila_test_shop.broken:app", folder)


@pytest.mark.parametrize("name", ["", "shop", ":app", "shop:", "a/b.py:app", "shop:app:x", "..shop:app", "shop:app()"])
def test_a_name_is_a_module_and_an_app(name: str) -> None:
    with pytest.raises(CannotLoadError, match="write MODULE:APP"):
        split_name(name)


# --- what it tells --------------------------------------------------------------------------------------------------------


def test_lines_come_back_as_they_were() -> None:
    for line in (wire.Serves(["orders"]), wire.TallyReport({"orders": Tally(ack=3, in_hand=1)})):
        encoded = wire.encode([line])
        assert encoded.endswith(b"\n")
        assert encoded.count(b"\n") == 1
        assert wire.decode(encoded) == line
    with pytest.raises(msgspec.MsgspecError):
        wire.decode(b'{"type": "other"}')


def test_the_line_in_the_terminal_counts_all_processes_also_those_that_ended() -> None:
    board = ProgressBoard()
    assert board.text(0) == "0 processes · 0 done · 0/s · 0 in hand"
    board.counted(1, {"orders": Tally(ack=100, in_hand=2, overdue=1), "mail": Tally(own=1)}, 10.0)
    board.counted(2, {"orders": Tally(ack=1000, retry=3, fail=1)}, 12.0)
    assert board.text(2) == (
        "2 processes · 1,101 done · 502/s · 2 in hand · 3 retried · 1 dead-lettered · 1 over their time limit"
    )
    board.ended(1)
    assert +board.totals() == {"ack": 1100, "own": 1, "retry": 3, "fail": 1}
    board.counted(2, {"orders": Tally(ack=1000, retry=3, fail=1)}, 30.0)
    assert "1 process · 1,101 done · 0/s · 0 in hand" in board.text(1)


def test_lines_of_a_process_are_written_above() -> None:
    output = io.StringIO()
    with shown(Console(file=output, force_terminal=True, width=80), lambda: "2 processes [bold]") as (write, draw):
        draw()
        write("[red] is no markup")
    text = output.getvalue()
    assert "[red] is no markup" in text
    assert "2 processes [bold]" in text


# --- logs -----------------------------------------------------------------------------------------------------------------


@contextmanager
def bare_logging() -> Iterator[None]:
    """Logging as in a fresh process. Within a test: pytest adds handlers of its own before each phase."""
    root, kept = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    root.handlers.clear()
    structlog.reset_defaults()
    try:
        yield
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
        structlog.reset_defaults()


@bare_logging()
def test_lines_of_both_kinds_have_the_messages_id() -> None:
    stream = io.StringIO()
    logs.set_up_logs("handlers", for_people=False, pid=7, stream=stream)
    with structlog.contextvars.bound_contextvars(message_id="0190", queue="orders", handler="charge"):
        logging.getLogger("shop").info("charged %s", "acme")
        structlog.get_logger("shop").warning("slow", seconds=3)
        try:
            int("no number")
        except ValueError:
            logging.getLogger("shop").exception("failed")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    about = {"process": "handlers", "pid": 7, "message_id": "0190", "queue": "orders", "handler": "charge"}
    assert list(first) == ["timestamp", "level", "event", *about]
    assert first | about == first
    assert first["event"] == "charged acme"
    assert second | about | {"seconds": 3, "level": "warning"} == second
    assert third["exception"].endswith("base 10: 'no number'")


@bare_logging()
def test_lines_for_people_show_no_local_variables() -> None:
    stream = io.StringIO()
    logs.set_up_logs("handlers", for_people=True, pid=7, stream=stream)
    payload = "secret" + " payload"
    try:
        print(1 // (len(payload) - 14))
    except ZeroDivisionError:
        structlog.get_logger("shop").exception("failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "secret payload" not in stream.getvalue()


@bare_logging()
def test_what_the_application_has_set_up_stays() -> None:
    own = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(own)
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    before = structlog.get_config()["processors"]
    logs.set_up_logs("handlers", for_people=False, pid=7)
    assert logging.getLogger().handlers == [own]
    assert structlog.get_config()["processors"] == before


# --- the rest -------------------------------------------------------------------------------------------------------------


def test_no_telemetry_is_set_up_unless_a_variable_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in logs.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    loaded = set(sys.modules)
    logs.set_up_telemetry()()
    assert not {name for name in set(sys.modules) - loaded if "exporter" in name}


def test_reload_without_its_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(CannotStartError, match=r"pip install 'fila-cluster\[reload\]'"):
        supervising.require_watchfiles()

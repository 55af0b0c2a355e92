"""Relays of an outbox in processes of their own, which die where a test wants it.

One process imports everything and forks a child for each relay, so that a relay that is killed costs a twentieth of a second and not a
second. ``python -m tests.support.cluster.relays URL ENDPOINT FILE`` reads a line for each child: a step's number, and answers with the child's process
id; ``wait PID`` is answered with how it ended.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event

from fila_cluster import Client
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.outbox import relay, relay_turn
from tests.support.cluster.cluster import PATIENCE_S

BATCH = 20
"""Small, so that there are many steps."""
FOR_EVER = -1
"""No step, and no end: until it is killed from outside."""


class Relays:
    """The parent of relays."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def _ask(self, line: str) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, step: int) -> int:
        """Start a relay that kills itself at its step of this number (0: never) or ends when nothing is left; its process id."""
        return self._ask(str(step))

    def wait(self, pid: int) -> int:
        """How a relay ended: its exit code, or minus a signal."""
        return self._ask(f"wait {pid}")


@contextmanager
def relays(url: str, endpoint: str, repeated: Path) -> Iterator[Relays]:
    """``repeated``: a file that grows by a byte for each row that the broker knew already."""
    words = [sys.executable, "-m", "tests.support.cluster.relays", url, endpoint, str(repeated)]
    repeated.touch()
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Relays(process)
    finally:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


def _serve(url: str, endpoint: str, repeated: str) -> None:
    for line in sys.stdin:
        word, _, pid = line.strip().rpartition(" ")
        if word == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    _relay(url, endpoint, Path(repeated), int(pid))
                    code = 0
                finally:
                    os._exit(code)
        print(answer, flush=True)


def _relay(url: str, endpoint: str, repeated: Path, step: int) -> None:
    engine = create_engine(url)
    with Client(endpoint, timeout=PATIENCE_S) as client:
        _count_repeated(repeated)
        if step == FOR_EVER:
            relay(engine, client, batch=BATCH, retention=0.5, poll=0.05)
        _die_at(step, engine)
        while relay_turn(engine, client, batch=BATCH, retention=0.5).more:
            pass
    engine.dispose()


def _die_at(step: int, engine: object) -> None:
    """Have SIGKILL come before and after each statement, commit and frame: what is counted are these places."""
    places = 0

    def tick(*_: object) -> None:
        nonlocal places
        places += 1
        if places == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, tick)
    for name in ("start", "outcome"):
        setattr(CommandsAhead, name, _between(tick, getattr(CommandsAhead, name)))


def _count_repeated(repeated: Path) -> None:
    outcome = CommandsAhead.outcome

    def counted(commands: CommandsAhead, call: Any) -> Any:
        enqueued = outcome(commands, call)
        with repeated.open("ab") as file:
            file.write(b"." * len(enqueued.known))
        return enqueued

    CommandsAhead.outcome = counted  # type: ignore[method-assign]


def _between(tick: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        tick()
        result = call(*arguments, **options)
        tick()
        return result

    return called


if __name__ == "__main__":
    _serve(*sys.argv[1:])

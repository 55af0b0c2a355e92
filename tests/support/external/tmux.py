"""A real terminal for tests: a tmux server of its own, whose screen is read as a person would."""

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.cluster.cluster import PATIENCE_S, environment


class Terminal:
    """A program in a terminal of a fixed size."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(socket)]

    def start(self, words: Sequence[str], columns: int, lines: int) -> None:
        """Start it; when it ends, its exit code stands on the screen."""
        program = f"{shlex.join(words)}; echo exit code $?; exec cat"
        self._run("new-session", "-d", "-x", str(columns), "-y", str(lines), "sh", "-c", program)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._run("send-keys", *keys)

    def screen(self) -> str:
        """What is to be seen."""
        return self._run("capture-pane", "-p")

    def close(self) -> None:
        """End it."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _run(self, *arguments: str) -> str:
        env = environment(TERM="xterm-256color", LC_ALL="C.UTF-8")
        for size in ("COLUMNS", "LINES"):  # pytest's parallel workers have them; here the terminal says how large it is
            env.pop(size, None)
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=True
        )
        return done.stdout


@contextmanager
def terminal(words: Sequence[str], columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """A program in a terminal that is gone afterwards."""
    with TemporaryDirectory(prefix="tmux-") as folder:  # a test's own folder may have too long a name for a socket
        opened = Terminal(Path(folder, "socket"))
        try:
            opened.start(words, columns, lines)
            yield opened
        finally:
            opened.close()

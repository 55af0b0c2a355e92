"""The blocks of a page of the docs, in order, and a reader who follows them: programs are saved and run, commands print what is shown."""

import os
import re
import subprocess
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from tests.support.cluster.cluster import PATIENCE_S, eventually

DOCS = Path(__file__).parents[2] / "docs"
DONE = ("pip install", "fila-cluster up")
"""Commands that are not run: everything is installed and started before."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block, and its language."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """All blocks of ``docs/<page>``."""
    found = [Block(*match.groups()) for match in _BLOCK.finditer((DOCS / page).read_text())]
    assert found, page
    return found


class Reader:
    """Follows the pages in a folder of their own. The handlers that they start work on in the background."""

    def __init__(self, folder: Path, *, endpoint: str, dashboard: str, path: str) -> None:
        """``dashboard``: its address, for the one that the pages name; ``path``: where the programs of the pages are."""
        self._address = dashboard
        self._folder = folder
        self._shown: list[str] = []
        """Lines of the command in the background."""
        self._background: subprocess.Popen[str] | None = None
        self._env = os.environ | {"FILA_ENDPOINT": endpoint, "PATH": path}

    def follow(self, block: Block) -> None:
        """Do what a block says. A text is what the command in the background has printed."""
        if block.language == "python":
            (self._folder / block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)
        elif block.language == "text":
            for line in block.text.splitlines():
                eventually(lambda line=line: line in self._shown, lambda line=line: f"{line!r} in {self._shown}")
        else:
            for part in block.text.split("$ ")[1:]:
                command, _, shown = part.partition("\n")
                if not command.startswith(DONE):
                    self._run(command, shown)

    def _run(self, command: str, shown: str) -> None:
        if command.startswith("fila-cluster work"):
            self._start(command)
            self.follow(Block("text", shown))
            return
        wanted = list(map(without_what_differs, shown.splitlines()))
        if command.startswith("curl"):  # the numbers of metrics are up to a second old
            eventually(lambda: shows(self._printed(command), wanted), shown)
            return
        printed = self._printed(command)
        assert shows(printed, wanted), (command, wanted, printed)

    def _printed(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("http://127.0.0.1:8555", self._address)],
            cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _start(self, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        self._background = process
        self._reading = Thread(target=self._shown.extend, args=(map(str.rstrip, process.stdout),), daemon=True)
        self._reading.start()

    def leave(self) -> None:
        """Stop what was started."""
        if self._background is not None:
            self._background.terminate()
            assert self._background.wait(PATIENCE_S) == 0, self._shown
            self._reading.join(PATIENCE_S)
            assert self._background.stdout is not None
            self._background.stdout.close()


def shows(printed: str, wanted: list[str]) -> bool:
    """Return whether a text has these lines, in this order."""
    lines = iter(map(without_what_differs, printed.splitlines()))
    return all(line in lines for line in wanted)


def without_what_differs(line: str) -> str:
    """Return a line without ids, durations, places of queues, and the width of columns."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[\w-]{22}", "ID", line)
    line = re.sub(r"\d+\.\d+ ?s", "N s", line)
    line = re.sub(r"^(orders\S* .*) \d+ *$", r"\1", line)
    return " ".join(line.split())

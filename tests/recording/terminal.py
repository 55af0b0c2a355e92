"""Run commands in a terminal of a known size, and keep what they write."""

import fcntl
import os
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COLUMNS = 98
ROWS = 20
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Shown:
    """A command, what it wrote, and how long it took."""

    command: str
    output: str
    seconds: float


class Terminal:
    """Where commands run: a folder and an environment."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env

    def run(self, command: str) -> Shown:
        """Run a command to its end; fail if it fails."""
        began = time.monotonic()
        with self._started(command) as (process, screen):
            output = _read(screen)
            code = process.wait(PATIENCE_S)
        if code:
            raise SystemExit(f"{command} exited with {code}:\n{output}")
        return Shown(command, output, time.monotonic() - began)

    @contextmanager
    def staying(self, command: str, until: str) -> Iterator[Shown]:
        """Run a command that stays in the foreground, from the moment at which it has written ``until``."""
        began = time.monotonic()
        with self._started(command) as (process, screen):
            output = _read(screen, until)
            yield Shown(command, output, time.monotonic() - began)
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)

    @contextmanager
    def _started(self, command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        with subprocess.Popen(
            ["bash", "-c", f"exec {command}" if "|" not in command else command],
            cwd=self._folder,
            env=self._env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            try:
                yield process, ours
            finally:
                process.kill()
                os.close(ours)


def _read(screen: int, until: str = "") -> str:
    """Return what is written up to ``until``, or to the end."""
    content = b""
    while not (until and until in content.decode(errors="ignore")):
        try:
            read = os.read(screen, 65536)
        except OSError:  # the last process has closed its end
            break
        if not read:
            break
        content += read
    return content.decode().replace("\r\n", "\n").rstrip("\n")

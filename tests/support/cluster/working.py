"""A running ``fila-cluster work``."""

import json
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.cluster.cluster import PATIENCE_S, command, environment, eventually

RENEWED = "all processes are new"


class WorkingApp:
    """Processes with the handlers of an app, which is found in ``folder``; ``log`` has the lines of their log so far."""

    def __init__(
        self, endpoint: str, app: str, folder: Path, *flags: object, env: Mapping[str, str] = {}, ready: bool = True
    ) -> None:
        self.log: list[str] = []
        self._process = subprocess.Popen(
            command("--endpoint", endpoint, "work", app, *flags),
            cwd=folder,
            env=environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdout
        self.ready_line = self._process.stdout.readline()
        if ready and not self.ready_line.startswith("ready: "):
            self.close()
            raise AssertionError((self.ready_line, self.log))

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log that are events."""
        found = []
        for line in list(self.log):
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def tells(self, text: str, times: int = 1) -> None:
        """Wait until its log has so many events with this text."""
        eventually(lambda: self._count(text) >= times, text)

    def pids(self) -> set[int]:
        """The processes that have logged something."""
        return {event["pid"] for event in self.events() if event["process"] == "handlers"}

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def renew(self) -> None:
        """Restart the processes one after the other, and wait until all are new."""
        before = self._count(RENEWED)
        self.send(signal.SIGHUP)
        self.tells(RENEWED, before + 1)

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def end(self) -> None:
        """Drain it; it must end well."""
        self.send(signal.SIGTERM)
        assert self.wait() == 0, self.log

    def close(self) -> None:
        """Leave nothing behind: processes whose supervisor is gone drain by themselves."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            stream.close()

    def __enter__(self) -> "WorkingApp":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self, text: str) -> int:
        return sum(text in str(event.get("event")) for event in self.events())

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.log.append(line.rstrip())

"""One broker as a process: its folder, and the signals that tests send to it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.external.brokers.guard import Guard

TAIL_BYTES = 4000
STOP_S_MAX = 60.0

# Each vain attempt to connect to a broker that is not up would be a line.
LOGGING = """
appender.all.type = Console
appender.all.name = all
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
logger.attempts.name = org.apache.kafka.clients.NetworkClient
logger.attempts.level = error
rootLogger.level = warn
rootLogger.appenderRef.all.ref = all
"""


class BrokerError(Exception):
    """A broker, or what it needs, did not start. The text has the end of its log."""


class Broker:
    """A broker in a folder, in a process group of its own. It may be started again after its end."""

    def __init__(self, home: Path, name: str, guard: Guard) -> None:
        self.home, self.name = home, name
        self.log = home / "broker.log"
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def logging(self) -> Path:
        return self.home / "log4j2.properties"

    def configure(self, properties: Mapping[str, object]) -> None:
        """Write its configuration."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.logging.write_text(LOGGING)
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str]) -> None:
        assert not self.runs, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        self._guard.watch(self._process.pid)

    def send(self, number: signal.Signals) -> None:
        assert self.runs, f"{self.name} does not run"
        os.killpg(self.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait for that."""
        self.send(number)
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended."""
        assert self._process is not None
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise BrokerError(f"{self.name} does not end: {self.tail()}") from None
        self._guard.release(self.pid)

    def tail(self) -> str:
        """The end of its log."""
        logged = self.log.read_text(errors="replace")[-TAIL_BYTES:] if self.log.exists() else ""
        return f"the end of {self.log}:\n{logged or '(empty)'}"

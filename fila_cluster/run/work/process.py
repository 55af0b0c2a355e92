"""One process for its supervisor: its start, signals, reports and output, until it has ended.

Programs that a handler has started may outlive it and keep its output and its socket open, so neither is awaited for longer
than a moment.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from fila_cluster.run.work import wire
from fila_cluster.run.work.progress import Write

OUTPUT_BYTES: Final = 1 << 16
"""Of a process's output that is shown at once; a longer line is shown in pieces."""

LAST_S: Final = 1.0
"""How long to read the rest of an ended process's output."""

_log = logging.getLogger("fila_cluster.run.work")


class Process:
    """A process that runs. ``heard`` gets its reports, ``write`` its output by lines; None: that goes to standard error."""

    def __init__(self, running: asyncio.subprocess.Process, ours: socket.socket, output: int | None) -> None:
        self._running = running
        self._ours = ours
        self._output = output

    @classmethod
    async def start(cls, settings: Callable[[int], wire.ProcessSettings], *, piped: bool) -> "Process":
        """Start one. ``settings`` makes its settings with the descriptor of its socket. Raises :class:`OSError`."""
        ours, theirs = socket.socketpair()
        output, end = os.pipe() if piped else (None, sys.stderr.fileno())  # standard output is for the line "ready: …" alone
        try:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "fila_cluster.run.work",
                msgspec.json.encode(settings(theirs.fileno())).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a terminal's Ctrl-C reaches the supervisor alone
            )
        except OSError:
            ours.close()
            if output is not None:
                os.close(output)
            raise
        finally:
            theirs.close()
            if output is not None:
                os.close(end)
        return cls(running, ours, output)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._running.returncode is None:
            self._running.send_signal(number)

    async def ended(self, heard: Callable[[wire.Line], None], write: Write | None) -> int:
        """Read its reports and output until it has ended; return its exit code, negative after a signal."""
        reading = [asyncio.create_task(self._listen(heard))]
        if write is not None and self._output is not None:
            reading.append(asyncio.create_task(_show(self._output, write)))
        code = await self._running.wait()
        _, late = await asyncio.wait(reading, timeout=LAST_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        return code

    async def _listen(self, heard: Callable[[wire.Line], None]) -> None:
        reader, writer = await asyncio.open_connection(sock=self._ours, limit=wire.LINE_BYTES_MAX)
        try:
            while line := await reader.readline():
                heard(wire.decode(line))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _log.error("process with pid %d sends a line that cannot be read: %s; ending it", self._running.pid, error)
            self.send(signal.SIGTERM)
        finally:
            writer.close()


async def _show(output: int, write: Write) -> None:
    """Write what comes in, line by line."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(output, "rb", buffering=0))
    rest = ""
    try:
        while data := await reader.read(OUTPUT_BYTES):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            for line in lines:
                write(line)
            if len(rest) > OUTPUT_BYTES:
                write(rest)
                rest = ""
    finally:
        transport.close()
        if rest:
            write(rest)

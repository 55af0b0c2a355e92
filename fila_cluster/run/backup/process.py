"""What both processes of this package are made of: settings from their parent, work in threads, and an end that does not wait for it."""

import os
import select
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from fila_cluster.run.backup.settings import KeeperSettings, ScheduleSettings
from fila_process.journal import Journal
from fila_process.parent import STDIN, StopRequests, read_settings
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import ProcessStopped

S = TypeVar("S", ScheduleSettings, KeeperSettings)


def run(name: str, kind: type[S], begin: Callable[[S, Journal], None]) -> NoReturn:
    """Read the settings, have the work begun in threads, and end when asked to. What is under way then is not waited for.

    The exit code is 1, with one line on standard error, if the settings are wrong.
    """
    try:
        settings = read_settings(kind)
    except msgspec.MsgspecError as error:
        print(f"fila {name}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    began = time.monotonic()
    stop = StopRequests(STDIN)
    journal = Journal(name, settings.log)
    begin(settings, journal)
    while True:
        readable, _, _ = select.select(stop.fds, [], [])
        if stop.requested(readable):
            break
    journal.tell([ProcessStopped(round(1000 * (time.monotonic() - began)))])
    stop.close()
    sys.stderr.flush()
    os._exit(0)


def cause(error: Exception) -> tuple[str, str]:
    """Return the code of a failure and its reason. Of a bug the name is all that is told."""
    reason = str(error) if isinstance(error, (FilaError, OSError)) else ""
    return error.code if isinstance(error, FilaError) else type(error).__name__, reason

"""The frame of this package's processes: settings from their parent, work in threads, and an end that does not wait for it."""

import os
import select
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from fila_process.journal import Journal
from fila_process.parent import STDIN, StopRequests, read_settings
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import LogSettings, ProcessStopped


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backup to ``target`` every so often, of which the last ``keep`` stay."""

    endpoint: str
    """The router's endpoint."""
    api_key: str | None = None
    """With authentication: the key of the cluster's own processes."""
    server_key: str | None = None
    target: str
    every_ms: int
    keep: int
    log: LogSettings = LogSettings()


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpoints of the replicated shards of a host, to ``target`` and back."""

    data_dir: str
    """Of the host's workers."""
    target: str
    """A folder or a URL that all hosts of the cluster reach."""
    log: LogSettings = LogSettings()


S = TypeVar("S", ScheduleSettings, KeeperSettings)


def run(name: str, kind: type[S], begin: Callable[[S, Journal], None]) -> NoReturn:
    """Read the settings, begin the work, end when asked to without waiting for it. Exit code 1: the settings are wrong."""
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
    """Return the code of a failure and its reason; of a bug only the name."""
    reason = str(error) if isinstance(error, (FilaError, OSError)) else ""
    return error.code if isinstance(error, FilaError) else type(error).__name__, reason

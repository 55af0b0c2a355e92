"""``python -P -m fila_router``: standard input gives the settings as one line of JSON; the end of that input means stop."""

import gc
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import zmq

from fila_process.files import allow_many_connections
from fila_process.journal import Journal
from fila_process.parent import STDIN, ParentHeartbeat, StopRequests, read_settings
from fila_proto_zmq.commands import ApiKey
from fila_proto_zmq.events import ProcessFailed, ProcessStopped, RouterListening
from fila_proto_zmq.version import VERSION
from fila_router.core.feature import ClusterSettings
from fila_router.core.keys.access import Access
from fila_router.core.limits import DEFAULTS
from fila_router.core.router import Router
from fila_router.key_file import AUTH_DIR, AuthFileError, load_keys, load_version, save_keys
from fila_router.loop import RouterLoop
from fila_router.settings import AuthSettings, RouterSettings
from fila_router.sockets import CannotListenError, checked_workers, open_back, open_front


def main() -> int:
    """Run until asked to stop; the exit code is 1, with one line on standard error, if it can't start."""
    try:
        return serve(read_settings(RouterSettings))
    except (CannotListenError, AuthFileError, msgspec.MsgspecError) as error:
        print(f"fila router: {error}", file=sys.stderr)
        return 1


def serve(settings: RouterSettings) -> int:
    """Listen as ``settings`` say and forward frames until asked to stop; return the exit code."""
    stop = StopRequests(STDIN)
    allow_many_connections()
    journal = Journal("router", settings.log)
    cluster = ClusterSettings(
        settings.shards_total, settings.consumer_timeout_ms, settings.max_payload_bytes, VERSION, settings.several
    )
    core = Router(cluster, entropy=secrets.token_bytes, access=_access(settings))
    with (
        zmq.Context() as context,
        checked_workers(context, settings),
        open_front(context, settings) as front,
        open_back(context, settings) as back,
    ):
        journal.tell([RouterListening(VERSION, settings.listen, settings.worker_listen, settings.shards_total)])
        loop = RouterLoop(core, front, back, stop, journal, ParentHeartbeat(STDIN), _saver(settings.auth))
        listening_at = time.monotonic()
        gc.freeze()
        try:
            loop.run()
        except Exception as error:  # a bug: log it and end; the parent starts the process again
            journal.tell([ProcessFailed.of(error)])
            return 1
    journal.tell([ProcessStopped(round(1000 * (time.monotonic() - listening_at)))])
    stop.close()
    return 0


def _access(settings: RouterSettings) -> Access | None:
    """Return the API keys; None: without authentication. Raise :class:`AuthFileError`."""
    auth = settings.auth
    if auth is None:
        return None
    directory = Path(auth.directory)
    version = load_version(directory) if settings.several else 0
    return Access(load_keys(directory), auth.internal, secrets.token_bytes, DEFAULTS, version)


def _saver(settings: AuthSettings | None) -> Callable[[list[ApiKey], int], None]:
    """Return the function that stores API keys."""
    return partial(save_keys, Path(settings.directory if settings else AUTH_DIR))


if __name__ == "__main__":
    sys.exit(main())

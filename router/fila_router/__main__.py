"""``python -P -m fila_router``: one line of JSON on standard input says what to be, the end of that input: stop."""

import gc
import os
import resource
import sys
from importlib.metadata import version

import msgspec
import zmq

from fila_router.core.router import Router
from fila_router.loop import Loop
from fila_router.settings import RouterSettings
from fila_router.sockets import CannotListenError, open_back, open_front
from fila_router.stop import StopRequests

STDIN = 0


def main() -> int:
    """Run until told to stop; the exit code is 1, with one line on standard error, if it can't start."""
    try:
        settings = msgspec.json.decode(_first_line(STDIN), type=RouterSettings)
        serve(settings)
    except (CannotListenError, msgspec.MsgspecError) as error:
        print(f"fila router: {error}", file=sys.stderr)
        return 1
    return 0


def serve(settings: RouterSettings) -> None:
    """Listen as ``settings`` say and forward frames until told to stop."""
    stop = StopRequests(STDIN)
    _allow_many_connections()
    core = Router(settings.shards_total, settings.consumer_timeout_ms, settings.max_payload_bytes, version("fila-cluster"))
    with zmq.Context() as context, open_front(context, settings) as front, open_back(context, settings) as back:
        gc.freeze()
        Loop(core, front, back, stop).run()


def _first_line(fd: int) -> bytes:
    """Read up to the first newline, and nothing behind it: the loop watches ``fd`` itself."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line


def _allow_many_connections() -> None:
    """Every client is a descriptor, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())

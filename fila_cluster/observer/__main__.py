"""``python -P -m fila_cluster.observer``: one line of JSON on standard input says what to be, the end of that input: stop."""

import os
import sys

import msgspec

from fila_cluster.client.loop import run
from fila_cluster.observer.serving import CannotListenError, serve
from fila_cluster.observer.settings import ObserverSettings

STDIN = 0


def main() -> int:
    """Run until told to stop; the exit code is 1, with one line on standard error, if it can't start."""
    try:
        settings = msgspec.json.decode(_first_line(STDIN), type=ObserverSettings)
        run(serve(settings, STDIN))
    except (CannotListenError, msgspec.MsgspecError) as error:
        print(f"fila observer: {error}", file=sys.stderr)
        return 1
    return 0


def _first_line(fd: int) -> bytes:
    """Read up to the first newline, and nothing behind it."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())

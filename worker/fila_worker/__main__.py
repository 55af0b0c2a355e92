"""``python -P -m fila_worker``: a worker as a child process; its settings are one line of JSON on stdin."""

import sys

import msgspec

from fila_proto_zmq.errors import FilaError
from fila_worker.loop import run
from fila_worker.settings import WorkerSettings


def main() -> int:
    """Run until stopped; 1 and one line on stderr if that is not possible."""
    try:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:  # unbuffered: the loop polls it later
            settings = msgspec.json.decode(stdin.readline(), type=WorkerSettings)
        return run(settings, follow_stdin=True)
    except (FilaError, msgspec.MsgspecError, OSError) as error:
        print(f"fila worker: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())

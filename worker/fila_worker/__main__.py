"""``python -P -m fila_worker``: a worker as a child process; its settings are one line of JSON on stdin."""

import os
import sys

import msgspec

from fila_process.parent import UNFIT, read_settings
from fila_proto_zmq.errors import FilaError
from fila_worker.loop import run
from fila_worker.replication.replicated import NameTakenError
from fila_worker.settings import WorkerSettings


def main() -> int:
    """Run until stopped and return 0; if that is not possible, print one line on stderr and return 1."""
    try:
        return run(read_settings(WorkerSettings))
    except NameTakenError as error:
        print(f"fila worker: {error}", file=sys.stderr, flush=True)
        return UNFIT
    except (FilaError, msgspec.MsgspecError, OSError) as error:
        print(f"fila worker: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; freeing a million fairness keys one by one would take seconds

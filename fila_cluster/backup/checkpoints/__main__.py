"""``python -P -m fila_cluster.backup.checkpoints``: standard input gives the settings as one line of JSON; the end of that input means stop."""

import os
import sys

import msgspec

from fila_cluster.backup.checkpoints.running import run
from fila_cluster.backup.settings import KeeperSettings
from fila_process.parent import read_settings


def main() -> int:
    """Run until asked to stop; the exit code is 1, with one line on standard error, if the settings are wrong."""
    try:
        run(read_settings(KeeperSettings))
    except msgspec.MsgspecError as error:
        print(f"fila checkpoints: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # what is being copied is not waited for

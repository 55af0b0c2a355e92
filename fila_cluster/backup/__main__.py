"""``python -P -m fila_cluster.backup``: standard input gives the settings as one line of JSON; the end of that input means stop."""

import os
import sys

import msgspec

from fila_cluster.backup.schedule import run
from fila_cluster.backup.settings import ScheduleSettings
from fila_process.parent import read_settings


def main() -> int:
    """Run until asked to stop; the exit code is 1, with one line on standard error, if the settings are wrong."""
    try:
        run(read_settings(ScheduleSettings))
    except msgspec.MsgspecError as error:
        print(f"fila backup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a backup under way is not waited for

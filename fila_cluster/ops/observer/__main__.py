"""``python -P -m fila_cluster.ops.observer``: standard input has the settings as a line of JSON; its end stops the process."""

import sys
import time

import msgspec

from fila_cluster.client.io.reactor import run
from fila_cluster.ops.observer.serving import BadCertificateError, CannotServeError, listen_to_libraries, serve
from fila_cluster.ops.observer.settings import ObserverSettings
from fila_process.journal import Journal
from fila_process.parent import STDIN, read_settings
from fila_proto_zmq.events import ProcessFailed, ProcessStopped


def main() -> int:
    """Run until asked to stop; the exit code is 1, with one line on standard error, if it can't start."""
    try:
        return _observe(read_settings(ObserverSettings))
    except (CannotServeError, BadCertificateError, msgspec.MsgspecError) as error:
        print(f"fila observer: {error}", file=sys.stderr)
        return 1


def _observe(settings: ObserverSettings) -> int:
    began = time.monotonic()
    journal = Journal("observer", settings.log)
    listen_to_libraries(journal)
    try:
        run(serve(settings, STDIN, journal))
    except (CannotServeError, BadCertificateError):
        raise
    except Exception as error:  # a bug: log it and end; the parent starts the process again
        journal.tell([ProcessFailed.of(error)])
        return 1
    journal.tell([ProcessStopped(round(1000 * (time.monotonic() - began)))])
    return 0


if __name__ == "__main__":
    sys.exit(main())

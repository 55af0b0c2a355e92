"""What libraries say through Python's logging, on its way into the log: a line each, like everything else there.

Only texts of log calls are told, and where an error came from; an error's own text may quote what it was about.
"""

import logging

from fila_process.journal import Journal
from fila_proto_zmq.events import LibraryFailed, LibraryWarned, where


class LibraryLines(logging.Handler):
    """Tells a journal of warnings and errors."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record down."""
        text = record.getMessage().strip()
        if record.levelno < logging.ERROR:
            self._journal.tell([LibraryWarned(record.name, text)])
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            self._journal.tell([LibraryFailed(record.name, text, [])])
        else:
            self._journal.tell([LibraryFailed(record.name, f"{text} ({type(error).__name__})", where(error))])


def listen_to_libraries(journal: Journal) -> None:
    """Let all libraries of this process speak through ``journal``, Python's own warnings too."""
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [LibraryLines(journal)]
    root.setLevel(logging.WARNING)

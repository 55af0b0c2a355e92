"""Logging of a process that the application has not set up itself: the same fields as the broker's logs, with the message's id."""

import logging
import sys
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

FIRST: Final = ("timestamp", "level", "event", "process", "pid", "message_id", "queue", "handler")


def set_up(process: str, *, for_people: bool, pid: int, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (standard error): lines for people, or JSON. Leaves alone what the application has configured.

    Within a handler each line has ``message_id``, ``queue`` and ``handler``, of structlog and of ``logging`` alike.
    """

    def who(logger: Any, method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        event.setdefault("pid", pid)
        return event

    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.add_log_level,
        who,
    ]
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                *first,
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        )
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=first,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_last(for_people=for_people)],
        )
    )
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _last(*, for_people: bool) -> list[Processor]:
    if for_people:  # a plain traceback: the other kind shows local variables, and payloads among them
        return [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer(default=str)]


def _in_order(logger: Any, method: str, event: EventDict) -> EventDict:
    """Put the fields that all lines have first, as in the broker's logs."""
    return {name: event[name] for name in FIRST if name in event} | dict(event)

"""Events of any process, and of the observer."""

from typing import Self

from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events.event import Event, where


class ProcessStopping(Event):
    """A part was asked to stop."""

    event = "process.stopping"


class ProcessStopped(Event):
    """A part is done: all is committed and flushed."""

    event = "process.stopped"
    lived_ms: int


class ProcessFailed(Event):
    """A part of the server has failed, and ends."""

    event = "process.failed"
    level = "critical"
    advice = (
        "`INVALID_ARGUMENT` of a worker: another process has its shards; stop one of the two. Anything else is a bug: "
        "report it with `trace`."
    )
    error: str
    reason: str
    trace: list[str]

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Describe the error that ended a process. Of foreign texts only the kind is shown: they may quote a message."""
        reason = str(error) if isinstance(error, (FilaError, OSError, AssertionError)) else ""
        return cls(error.code if isinstance(error, FilaError) else type(error).__name__, reason, where(error))


class LinesLost(Event):
    """Standard error was not read for a while, so lines were dropped rather than the broker held up."""

    event = "log.lines_lost"
    level = "warning"
    advice = "What reads standard error reads too slowly, or does not read: look at what it is connected to."
    lines: int


class ObserverServing(Event):
    """The observer watches, and serves HTTP if it has an address to listen on."""

    event = "observer.serving"
    listen: str | None
    otlp_endpoint: str | None


class DashboardLeftOut(Event):
    """The dashboard can't be loaded, though it is installed; the observer runs without it."""

    event = "dashboard.left_out"
    level = "error"
    advice = (
        "Its libraries are of other versions than it was made for: `pip install --upgrade 'fila-cluster[dashboard]'`, "
        "then restart."
    )
    error: str
    trace: list[str]


class ExportFailing(Event):
    """The collector does not accept what is exported. Logged once, until it accepts exports again."""

    event = "export.failing"
    level = "warning"
    advice = "Look at the collector. Nothing else is disturbed."
    otlp_endpoint: str


class ExportRecovered(Event):
    """The collector accepts exports again."""

    event = "export.recovered"
    otlp_endpoint: str


class LibraryWarned(Event):
    """A warning of a library that the process uses."""

    event = "library.warned"
    level = "warning"
    advice = "Rarely anything. Report it if it comes often."
    library: str
    text: str


class LibraryFailed(Event):
    """An error in a library that the process uses, or in code that the library called."""

    event = "library.failed"
    level = "error"
    advice = "Report it with `trace`."
    library: str
    text: str
    trace: list[str]


class ApiKeyCreated(Event):
    """An API key was made by the holder of another one."""

    event = "api_key.created"
    key: str
    by: str
    allow: list[str]
    expires_ms: int


class ApiKeyGranted(Event):
    """An API key was given further permissions."""

    event = "api_key.granted"
    key: str
    by: str
    allow: list[str]


class ApiKeyRevoked(Event):
    """An API key was ended."""

    event = "api_key.revoked"
    key: str
    by: str


class CertificateLoaded(Event):
    """The certificate of HTTP has changed on disk, and holds for new connections."""

    event = "certificate.loaded"
    certificate: str


class CertificateRefused(Event):
    """The certificate of HTTP has changed on disk and can't be used; the earlier one holds."""

    event = "certificate.refused"
    level = "error"
    advice = "`reason` says what is wrong. Write both PEM files again; they are read within a second."
    reason: str

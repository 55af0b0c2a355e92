"""What the observer tells: of exports, and of the libraries that it uses."""

from fila_proto_zmq.events.event import Event


class ObserverServing(Event):
    """The observer watches, and serves HTTP if it was told where."""

    event = "observer.serving"
    listen: str | None
    otlp_endpoint: str | None


class DashboardLeftOut(Event):
    """The dashboard can't be loaded, though it is installed; the observer goes on without it."""

    event = "dashboard.left_out"
    level = "error"
    error: str
    trace: list[str]


class ExportFailing(Event):
    """The collector does not take what is exported; told once, until it does again."""

    event = "export.failing"
    level = "warning"
    otlp_endpoint: str


class ExportRecovered(Event):
    """The collector takes what is exported again."""

    event = "export.recovered"
    otlp_endpoint: str


class LibraryWarned(Event):
    """A warning of a library that the process uses."""

    event = "library.warned"
    level = "warning"
    library: str
    text: str


class LibraryFailed(Event):
    """An error in a library that the process uses, or in what it called."""

    event = "library.failed"
    level = "error"
    library: str
    text: str
    trace: list[str]

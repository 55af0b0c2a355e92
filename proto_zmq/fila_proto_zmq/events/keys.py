"""Events of access: API keys that are made, changed and ended, and the certificate of HTTP."""

from fila_proto_zmq.events.event import Event


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

"""TLS for HTTP, from files that may be replaced while it is served."""

import asyncio
import os
import ssl
from pathlib import Path
from typing import Final

from fila_process.journal import Journal
from fila_proto_zmq.events import CertificateLoaded, CertificateRefused

LOOK_S: Final = 1.0
"""How often to look whether the files were replaced."""


class BadCertificateError(Exception):
    """The certificate or its key can't be used; the text has the remedy."""


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return a context with a certificate. Raise :class:`BadCertificateError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadCertificateError(
            f"[http] certificate {certificate} with key {key}: {what}; use PEM files that belong together, without a password"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


async def follow(context: ssl.SSLContext, certificate: str, key: str, journal: Journal) -> None:
    """Load the files again after changes, for new connections. A bad pair is logged, and the last good one stays."""
    known = _stamps(certificate, key)
    while True:
        await asyncio.sleep(LOOK_S)
        stamps = _stamps(certificate, key)
        if stamps == known:
            continue
        known = stamps
        try:
            tls_context(certificate, key)  # a failed load may leave a context with half of a pair
            _load(context, certificate, key)
            journal.tell([CertificateLoaded(certificate)])
        except BadCertificateError as error:
            journal.tell([CertificateRefused(str(error))])


def _stamps(*paths: str) -> list[tuple[int, int] | None]:
    stamps: list[tuple[int, int] | None] = []
    for path in map(Path, paths):
        try:
            status = os.stat(path)
            stamps.append((status.st_mtime_ns, status.st_ino))
        except OSError:
            stamps.append(None)
    return stamps

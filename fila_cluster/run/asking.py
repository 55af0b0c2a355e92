"""One question over HTTP to the dashboard of a cluster on this machine, or whether it answers at all."""

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext
from typing import NamedTuple

from fila_cluster.run.config.settings import Address

ANSWER_S_MAX = 0.5
"""How long an observer on this machine may take to answer."""


class HttpAnswer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


def ask_dashboard(listen: Address, path: str, *, tls: bool, timeout_s: float = ANSWER_S_MAX) -> HttpAnswer | None:
    """Return the answer of the observer that listens there to a GET; None: there was none."""
    address = listen.reachable
    host, port = address.host.strip("[]"), address.port
    if tls:  # a certificate for another name is the browsers' concern: it is only asked whether pages are served
        asking: HTTPConnection = HTTPSConnection(host, port, timeout=timeout_s, context=_unverified_context())
    else:
        asking = HTTPConnection(host, port, timeout=timeout_s)
    try:
        asking.request("GET", path)
        answer = asking.getresponse()
        return HttpAnswer(answer.status, answer.read())
    except (OSError, HTTPException):
        return None
    finally:
        asking.close()


def dashboard_url(listen: Address, *, tls: bool) -> str:
    """Return the address of the dashboard for a browser on this machine."""
    return f"{'https' if tls else 'http'}://{listen.reachable}"


def _unverified_context() -> SSLContext:
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = CERT_NONE
    return context

"""Pages over TLS, with a certificate that is replaced while they are served."""

import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fila_cluster.ops.observer.settings import ObserverSettings
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cluster.cluster import PATIENCE_S, eventually

CERTIFICATES = Path(__file__).parent / "certificates"


def put(name: str, folder: Path) -> None:
    """Replace the certificate in a folder by another one."""
    for kind in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{name}.{kind}", folder / f"new.{kind}")
        (folder / f"new.{kind}").rename(folder / f"server.{kind}")


def settings(folder: Path, port: int) -> bytes:
    return (
        msgspec.json.encode(
            ObserverSettings(
                endpoint="tcp://127.0.0.1:1",
                host="127.0.0.1",
                port=port,
                otlp_endpoint=None,
                service_name="fila",
                metrics_interval_ms=100,
                certificate=str(folder / "server.pem"),
                private_key=str(folder / "server.key"),
            )
        )
        + b"\n"
    )


def observer(line: bytes) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "fila_cluster.ops.observer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    process.stdin.write(line)
    process.stdin.flush()
    return process


@pytest.fixture
def port() -> int:
    with Ports() as ports:
        return ports.reserve(Address("127.0.0.1", 0), "--dashboard").port


@pytest.fixture
def serving(tmp_path: Path, port: int) -> "Iterator[subprocess.Popen[bytes]]":
    put("one", tmp_path)
    process = observer(settings(tmp_path, port))
    yield process
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


def greeting(port: int, trusted: str) -> bytes | None:
    """What /healthz answers to a client that trusts one certificate; None if it sees another one, or nobody answers."""
    context = ssl.create_default_context(cafile=str(CERTIFICATES / f"{trusted}.pem"))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            encrypted.sendall(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return encrypted.recv(12)
    except OSError:
        return None


def test_a_certificate_may_be_replaced_and_a_bad_one_is_not_taken(serving: object, tmp_path: Path, port: int) -> None:
    eventually(lambda: greeting(port, "one") == b"HTTP/1.1 200", "an answer over TLS")
    put("other", tmp_path)
    eventually(lambda: greeting(port, "other") == b"HTTP/1.1 200", "the new certificate")
    assert greeting(port, "one") is None
    (tmp_path / "server.key").write_text("no key")
    assert isinstance(serving, subprocess.Popen)
    assert serving.stderr
    while b"certificate.refused" not in serving.stderr.readline():
        pass
    assert greeting(port, "other") == b"HTTP/1.1 200"


def test_files_that_do_not_belong_together_are_one_line(tmp_path: Path, port: int) -> None:
    put("one", tmp_path)
    shutil.copy(CERTIFICATES / "other.key", tmp_path / "server.key")
    process = observer(settings(tmp_path, port))
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    (line,) = error.splitlines()
    assert b"[http] certificate" in line
    assert b"belong together" in line

"""A PostgreSQL server of a test's own: made in a temporary directory, on a Unix socket, and stopped in the end."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cluster.cluster import PATIENCE_S, eventually

DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian has the server's programs, a folder for each version: they are not in ``PATH``."""
FLAGS = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50")


def program(name: str) -> str | None:
    """The path of a program of the server, of the newest version that is installed."""
    versions = sorted(DEBIAN.glob("[0-9]*"), key=lambda folder: float(folder.name), reverse=True)
    return next((str(found) for folder in versions if (found := folder / "bin" / name).exists()), shutil.which(name))


def what_postgres_lacks() -> str | None:
    """One line if no server can run here; None if one can."""
    if program("initdb") and program("postgres"):
        return None
    return "there is no PostgreSQL server: install it (Debian: apt-get install postgresql)"


def _user() -> str | None:
    """Who runs it, if not this user: the server refuses to be root."""
    return "nobody" if os.geteuid() == 0 else None


@contextmanager
def postgres() -> Iterator[str]:
    """A server, as a URL of SQLAlchemy."""
    initdb, server = program("initdb"), program("postgres")
    assert initdb
    assert server
    folder = Path(tempfile.mkdtemp(prefix="fila-postgres-"))  # short: the path of a socket has at most 107 characters
    if user := _user():
        shutil.chown(folder, user)
    data, environment = folder / "data", {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
    try:
        make = (initdb, "-D", data, "-U", "fila", "-A", "trust", "-E", "UTF8", "--no-sync")
        subprocess.run(make, check=True, capture_output=True, cwd=folder, env=environment, timeout=PATIENCE_S, user=user)
        with (folder / "log").open("w") as log:
            running = subprocess.Popen(
                (server, "-D", data, "-k", folder, *FLAGS), stdout=log, stderr=log, cwd=folder, env=environment, user=user
            )
        try:
            url = f"postgresql+psycopg://fila@/postgres?host={folder}"
            eventually(lambda: _answers(url), f"PostgreSQL ({(folder / 'log').read_text()})")
            yield url
        finally:
            running.send_signal(signal.SIGINT)  # it ends its clients' connections
            running.wait(PATIENCE_S)
    finally:
        shutil.rmtree(folder)


def _answers(url: str) -> bool:
    from sqlalchemy import create_engine, text  # noqa: PLC0415 # of an extra: the machine's needs are looked at without it
    from sqlalchemy.exc import OperationalError  # noqa: PLC0415

    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(text("SELECT 1")) == 1)
    except OperationalError:
        return False
    finally:
        engine.dispose()

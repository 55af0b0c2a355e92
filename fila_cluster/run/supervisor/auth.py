"""A cluster's authentication, for its supervisor: the stored key pairs, and a key for the cluster's own processes."""

import base64
import hmac
import secrets
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec
import zmq

from fila_admission.keys import ALGORITHM, digest_of, make_secret
from fila_cluster.run.supervisor import CannotStartError
from fila_proto_zmq.commands import ApiKey
from fila_proto_zmq.errors import InvalidConfigError
from fila_router.key_file import (
    AUTH_DIR,
    FORMAT,
    SERVER_FILE,
    AuthFileError,
    Pair,
    ServerFile,
    load_keys,
    load_server,
    save_keys,
    save_server,
)
from fila_router.settings import AuthSettings
from fila_worker.settings import JoinKeys

TOKEN_PREFIX = "fila-worker_"
KEY_LENGTH = 40
"""Characters of a CurveZMQ key in Z85."""
EVERYTHING = ("admin:*", "consume:*", "produce:*")
FIRST_KEY = "admin"


@dataclass(frozen=True)
class ClusterAuth:
    """Keys for the processes of a cluster with authentication. ``api_key``: the secret of their own key."""

    stored: ServerFile
    api_key: str
    made_ms: int

    @property
    def server_keys(self) -> str:
        """The public keys that clients pin: of the server now, and the next one if there is one."""
        pairs = (self.stored.server, self.stored.next_server)
        return ",".join(pair.public_key for pair in pairs if pair is not None)

    @property
    def of_workers(self) -> JoinKeys:
        """Return the keys of workers that join over TCP."""
        return JoinKeys(_for_workers(self.stored).public_key, *_both(self.stored.workers))

    def of_router(self) -> AuthSettings:
        """Return the router's part."""
        own = ApiKey("internal", ALGORITHM, digest_of(self.api_key), list(EVERYTHING), self.made_ms)
        stored = self.stored
        return AuthSettings(AUTH_DIR, stored.server, _for_workers(stored), stored.workers.public_key, [own])


def open_auth(data_dir: Path, *, of_several: bool = False) -> ClusterAuth:
    """Return the authentication of the cluster in a data directory. Raise :class:`CannotStartError` if it has no keys.

    The key of the cluster's own processes ends with the cluster. ``of_several``: on several hosts it has to be the same
    everywhere, because workers have one list of keys; it is derived from the secret key of workers, which has the same
    rights.
    """
    try:
        load_keys(data_dir / AUTH_DIR)
        stored = load_server(data_dir / AUTH_DIR)
    except AuthFileError as error:
        raise CannotStartError(f"[auth] is enabled, and {error}") from None
    if not of_several:
        return ClusterAuth(stored, make_secret(secrets.token_bytes), _now_ms())
    shared = hmac.digest(stored.workers.secret_key.encode(), b"the key of the hosts' own processes", "sha256")
    return ClusterAuth(stored, make_secret(lambda count: shared[:count]), 0)


def fingerprint_of(auth: ClusterAuth | None) -> str:
    """Return a fingerprint of the keys, equal on all hosts of a cluster. It stays when the server's keys are exchanged."""
    return "none" if auth is None else sha256(auth.stored.workers.public_key.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Initialized:
    """The output of ``auth init``."""

    api_key: str
    server_key: str
    worker_token: str


def init_auth(data_dir: Path) -> Initialized:
    """Make the server's key pair and the first API key, which may do everything. Raise :class:`CannotStartError`."""
    directory = data_dir / AUTH_DIR
    if (directory / SERVER_FILE).exists():
        raise CannotStartError(
            f"{directory} has keys already: manage them with `fila-cluster auth key …`; if all admin keys are lost, remove "
            "that directory and begin anew (clients then need the new server key)"
        )
    secret = make_secret(secrets.token_bytes)
    server, workers = _pair(), _pair()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = ApiKey(FIRST_KEY, ALGORITHM, digest_of(secret), list(EVERYTHING), _now_ms())
        save_keys(directory, [first])
        save_server(directory, ServerFile(format=FORMAT, server=server, workers=workers))  # last, because it completes them
    except OSError as error:
        raise CannotStartError(f"cannot write {directory}: {error.strerror}; choose another --data-dir") from None
    return Initialized(secret, server.public_key, worker_token(server, workers))


def prepare_server_key(data_dir: Path) -> ServerFile:
    """Make the server's next pair, unless there is one. Raise :class:`CannotStartError`."""
    stored = _stored(data_dir)
    return stored if stored.next_server else _replaced(data_dir, stored, next_server=_pair())


def switch_server_key(data_dir: Path) -> ServerFile:
    """Switch the server to the next pair: a running cluster uses it within a second. Raise :class:`CannotStartError`."""
    stored = _stored(data_dir)
    if stored.next_server is None:
        raise CannotStartError("there is no next server key: make one without --switch, and give it to all clients first")
    return _replaced(data_dir, stored, server=stored.next_server, next_server=None, workers_server=_for_workers(stored))


def _stored(data_dir: Path) -> ServerFile:
    try:
        return load_server(data_dir / AUTH_DIR)
    except AuthFileError as error:
        raise CannotStartError(str(error)) from None


def _replaced(data_dir: Path, stored: ServerFile, **changes: Pair | None) -> ServerFile:
    changed = msgspec.structs.replace(stored, **changes)
    try:
        save_server(data_dir / AUTH_DIR, changed)
    except OSError as error:
        raise CannotStartError(f"cannot write {data_dir / AUTH_DIR}: {error.strerror}") from None
    return changed


def _for_workers(stored: ServerFile) -> Pair:
    """Return the server's pair for workers that join over TCP: their tokens name the first one."""
    return stored.workers_server or stored.server


class AuthWatch:
    """Detects changes of the server's keys on disk."""

    def __init__(self, data_dir: Path, auth: ClusterAuth) -> None:
        self._data_dir = data_dir
        self._auth = auth
        self._stamp = self._look()

    def changed(self) -> ClusterAuth | None:
        """Return the present keys if the file has changed since the last call, and can be read."""
        stamp = self._look()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self._auth = replace(self._auth, stored=load_server(self._data_dir / AUTH_DIR))
        except AuthFileError:  # keep the keys that are in use
            return None
        return self._auth

    def _look(self) -> tuple[int, int] | None:
        try:
            status = (self._data_dir / AUTH_DIR / SERVER_FILE).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino


def worker_token(server: Pair, workers: Pair) -> str:
    """Return the token for a worker on another host: the server's public key, and the workers' pair."""
    return TOKEN_PREFIX + base64.urlsafe_b64encode("".join((server.public_key, *_both(workers))).encode()).decode()


def read_token(token: str) -> JoinKeys:
    """Return the keys in a token. Raise :class:`InvalidConfigError` if it is not a token."""
    try:
        text = base64.b64decode(token.removeprefix(TOKEN_PREFIX), altchars=b"-_", validate=True).decode("ascii")
        keys = JoinKeys(*(text[start : start + KEY_LENGTH] for start in range(0, len(text), KEY_LENGTH)))
        whole = token.startswith(TOKEN_PREFIX) and zmq.curve_public(keys.secret_key.encode()) == keys.public_key.encode()
    except (ValueError, TypeError, zmq.ZMQError):
        whole = False
    if not whole:
        raise InvalidConfigError(
            f"--token: that is not a token of `fila-cluster auth init`, which begins with {TOKEN_PREFIX}"
        )
    return keys


def _both(pair: Pair) -> tuple[str, str]:
    return pair.public_key, pair.secret_key


def _pair() -> Pair:
    public_key, secret_key = zmq.curve_keypair()
    return Pair(public_key.decode(), secret_key.decode())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""The files of a cluster with authentication, in ``auth`` of its data directory: the server's key pair, and the API keys.

``server.json`` has the CurveZMQ pairs of the server and of workers on other hosts. Only ``auth rotate-server-key`` changes
it. ``keys.json`` has the API keys, as hashes. Both are private. Only the router writes ``keys.json`` while the cluster runs:
whole or not at all, and on disk before a change is confirmed. With several routers the log of shard 0 has the keys, and each
router's file is a copy.
"""

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fila_process.files import write_whole
from fila_proto_zmq.commands import ApiKey

AUTH_DIR: Final = "auth"
SERVER_FILE: Final = "server.json"
KEYS_FILE: Final = "keys.json"
FORMAT: Final = 1


File = TypeVar("File", "ServerFile", "KeysFile")


class AuthFileError(Exception):
    """A file of the authentication is missing, damaged, or can't be read; the text has the remedy."""


class Pair(msgspec.Struct, frozen=True):
    """A CurveZMQ key pair, each 40 characters of Z85."""

    public_key: str
    secret_key: str


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """``server.json``."""

    format: int
    server: Pair
    """Clients pin its public key."""
    workers: Pair
    """With this pair workers on other hosts prove that they belong to the cluster."""
    next_server: Pair | None = None
    """The pair that the server is to have next, while clients learn its public key."""
    workers_server: Pair | None = None
    """The pair whose public key workers on other hosts pin. None: the pair of the server, which was never replaced."""


class StoredKey(msgspec.Struct, kw_only=True):
    """One entry of ``keys.json``. Times are Unix ms, 0 for never."""

    name: str
    algorithm: str
    digest: str
    """Hexadecimal."""
    allow: list[str]
    created_ms: int
    expires_ms: int = 0
    used_ms: int = 0


class KeysFile(msgspec.Struct, kw_only=True):
    """``keys.json``."""

    format: int
    keys: list[StoredKey]
    version: int = 0
    """The version of these keys in the log of shard 0, which several routers share; 0: they are not from there."""


def load_server(directory: Path) -> ServerFile:
    """Return the key pairs. Raise :class:`AuthFileError`."""
    return _load(directory / SERVER_FILE, ServerFile)


def load_keys(directory: Path) -> list[ApiKey]:
    """Return the API keys. Raise :class:`AuthFileError`."""
    path = directory / KEYS_FILE
    try:
        return [
            ApiKey(**msgspec.structs.asdict(key) | {"digest": bytes.fromhex(key.digest)})
            for key in _load(path, KeysFile).keys
        ]
    except ValueError as error:
        raise AuthFileError(f"{path} is damaged: {error}; restore it from a backup") from None


def load_version(directory: Path) -> int:
    """Return the version of the stored keys in the log of shard 0; 0: not from there. Raise :class:`AuthFileError`."""
    return _load(directory / KEYS_FILE, KeysFile).version


def save_server(directory: Path, file: ServerFile) -> None:
    """Write the key pairs."""
    _save(directory / SERVER_FILE, file)


def save_keys(directory: Path, keys: list[ApiKey], version: int = 0) -> None:
    """Write all API keys; they are on disk when it returns."""
    stored = [StoredKey(**msgspec.structs.asdict(key) | {"digest": key.digest.hex()}) for key in keys]
    _save(directory / KEYS_FILE, KeysFile(format=FORMAT, keys=stored, version=version))


def _load(path: Path, kind: type[File]) -> File:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise AuthFileError(
            f"there is no {path}: run `fila-cluster auth init --data-dir {path.parent.parent}` once, "
            "or restore it from a backup"
        ) from None
    except OSError as error:
        raise AuthFileError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise AuthFileError(f"{path} is damaged: {error}; restore it from a backup") from None
    if file.format != FORMAT:
        raise AuthFileError(f"{path} has format {file.format}, this version reads {FORMAT}: use a matching version")
    return file


def _save(path: Path, content: msgspec.Struct) -> None:
    """Write a file whole or not at all, private to its user."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    write_whole(path, [msgspec.json.format(msgspec.json.encode(content), indent=1), b"\n"])

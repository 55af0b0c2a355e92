"""The files by which a worker and the process that keeps checkpoints work together, for each shard.

::

    DATA/checkpoints/shard-0003/
        made/              a checkpoint of this host's copy, of hard links
        made.json          it is whole, and where in the log it is          worker ─▶ keeper
        kept.json          the target has it, or a later one                keeper ─▶ worker
        wanted.json        the copy can't follow the log                    worker ─▶ keeper
        refused.json       why no checkpoint was brought, so far            keeper ─▶ worker
        brought.restoring/ a checkpoint that is being copied from the target
        brought/           it is whole: it is to replace the copy           keeper ─▶ worker
        old-…/             what was replaced, or is not needed any more, and is being removed

Each file is whole or not there, each directory gets its name when it is whole, and each step may be repeated. So both may be
killed at any moment. One worker and one keeper at a time use the files of a shard.

A copy that can't follow the log begins again:

- The log begins behind the copy's position, because the copy is new, or was away for long. It needs a checkpoint.
- The copy has changes that are not in the log. They were never confirmed, so it is dropped, and begins with the log or a
  checkpoint.

A log that has lost confirmed records is another case: the copies may be all that is left, and people must decide.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Final, TypeVar

import msgspec

from fila_process.files import move, remove, sync_names, write_whole
from fila_worker.log.partition import TrimmedError

FOLDER: Final = "checkpoints"
"""Below the data directory."""
OLD: Final = "old-"

_S = TypeVar("_S", bound=msgspec.Struct)


class Made(msgspec.Struct, frozen=True):
    """A checkpoint is whole, at a position of the log. ``log``: its name; a topic that is made again has another one."""

    log: str
    shard: int
    shards: int
    offset: int
    epoch: int
    number: int


class Kept(msgspec.Struct, frozen=True):
    """The target has a checkpoint at ``offset``, or a later one."""

    log: str
    offset: int
    needed_from: int
    """The first offset that the log must keep, for the oldest checkpoint that counts; -1: all of it."""


class Wanted(msgspec.Struct, frozen=True):
    """A copy needs a checkpoint at ``begin`` or later, because the log begins there."""

    log: str
    shard: int
    shards: int
    begin: int


class Refused(msgspec.Struct, frozen=True):
    """Why nothing was brought. It is tried again."""

    begin: int
    reason: str


class Exchange:
    """The files of one shard. Methods raise :class:`OSError`."""

    def __init__(self, data_dir: Path, shard: int) -> None:
        name = f"shard-{shard:04d}"
        self.shard = shard
        self.copy = data_dir / name
        """The directory of this host's copy."""
        self._folder = data_dir / FOLDER / name
        self.made_path = self._folder / "made"
        self.brought_path = self._folder / "brought"
        self._made, self._kept = self._folder / "made.json", self._folder / "kept.json"
        self._wanted, self._refused = self._folder / "wanted.json", self._folder / "refused.json"
        self._removing: Thread | None = None

    # --- a checkpoint that was made -----------------------------------------------------------------------------------

    def make(self, made: Made, checkpoint: Callable[[Path], None]) -> None:
        """Make a checkpoint, by a function that makes a directory as a whole or not at all. Only one is under way."""
        self._make_folder()
        self._put_aside(self.made_path)  # of an earlier process that ended in the middle
        checkpoint(self.made_path)
        _write(self._made, made)

    def made(self) -> Made | None:
        """Return the checkpoint to be copied to the target."""
        return _read(self._made, Made)

    def keep(self, kept: Kept) -> None:
        """Say that the target has it."""
        _write(self._kept, kept)

    def kept(self) -> Kept | None:
        """Return the target's last checkpoint, if the keeper has reported it."""
        return _read(self._kept, Kept)

    def release(self) -> None:
        """Remove the checkpoint."""
        if self._made.exists():  # first: the directory alone does not count
            remove(self._made)
        self._kept.unlink(missing_ok=True)
        self._put_aside(self.made_path)

    # --- a checkpoint for the copy ------------------------------------------------------------------------------------

    def want(self, wanted: Wanted) -> None:
        """Ask for a checkpoint."""
        if self.wanted() != wanted:
            self._make_folder()
            _write(self._wanted, wanted)

    def wanted(self) -> Wanted | None:
        """Return what the copy needs."""
        return _read(self._wanted, Wanted)

    def refuse(self, refused: Refused) -> None:
        """Say why nothing was brought."""
        _write(self._refused, refused)

    def refused(self) -> Refused | None:
        """Return why nothing was brought."""
        return _read(self._refused, Refused)

    def bring(self, draft: Path) -> None:
        """Give a whole checkpoint its name. Its files are on the disk."""
        move(draft, self.brought_path)

    def adopt(self) -> bool:
        """Replace the closed copy by the checkpoint that was brought; return whether there was one."""
        if not self.brought_path.exists():
            return False
        for file in (self._wanted, self._refused):  # first: nothing more is brought then
            if file.exists():
                remove(file)
        self.discard()
        move(self.brought_path, self.copy)
        return True

    def discard(self) -> None:
        """Remove the copy, which is closed."""
        self._put_aside(self.copy)

    def sweep(self) -> None:
        """Remove what was replaced, also by an earlier process."""
        if old := [*self._folder.glob(f"{OLD}*")]:  # in a thread: to free gigabytes takes the file system a while
            self._removing = Thread(target=_remove, args=(old, self._removing), name="old checkpoints", daemon=True)
            self._removing.start()

    def _put_aside(self, path: Path) -> None:
        if path.exists():
            self._make_folder()
            path.rename(mkdtemp(prefix=OLD, dir=self._folder))  # it takes the place of an empty directory
            sync_names(path.parent)
            self.sweep()

    # --- the folder ---------------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_names(self._folder.parent)
            sync_names(self._folder.parent.parent)

    @property
    def removing(self) -> bool:
        """Whether directories are being removed."""
        return self._removing is not None and self._removing.is_alive()


def exchanges_of(data_dir: Path) -> list[Exchange]:
    """Return those of all shards that have such files."""
    with suppress(FileNotFoundError):
        names = sorted(path.name.removeprefix("shard-") for path in (data_dir / FOLDER).iterdir())
        return [Exchange(data_dir, int(name)) for name in names if name.isdigit()]
    return []


def _write(path: Path, content: msgspec.Struct) -> None:
    write_whole(path, [msgspec.json.encode(content)])


def _read(path: Path, kind: type[_S]) -> _S | None:
    """Return the content of a file; None if it is not there, or is of another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _remove(paths: list[Path], before: Thread | None) -> None:
    if before is not None:
        before.join()
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


LOOK_MS: Final = 500
"""Between two looks at whether a checkpoint was brought."""


class Beginning:
    """The copy of one shard, while it is not open. ``log``: the log's name; None: without a target for checkpoints."""

    def __init__(self, exchange: Exchange, shards: int, log: str | None) -> None:
        self._exchange, self._shards, self._log = exchange, shards, log
        self._wanted: Wanted | None = None
        self._look_ms = 0
        self._drops = False
        self.reason = ""
        """Why the copy can't be opened yet; empty: it can."""
        exchange.sweep()

    def need(self, error: TrimmedError) -> None:
        """Ask for a checkpoint, because the log has no more what the copy needs. The copy is closed."""
        begin = int(error.details["begin"])
        if self._log is None:
            self.reason = (
                f"the log of the shard begins at offset {begin}, this host's copy needs offset {error.details['offset']}, "
                "and no target for checkpoints is configured: name the one that the other hosts use in [replication] "
                "checkpoint, and start this host again"
            )
            return
        self._wanted = Wanted(self._log, self._exchange.shard, self._shards, begin)
        self.reason = f"it waits for a checkpoint at offset {begin} of the log or later"

    def drop(self) -> None:
        """Drop the copy before it is opened again: it has changes that are not in the log."""
        self._drops = True

    def ready(self, now_ms: int) -> bool:
        """Return whether the copy may be opened. A checkpoint may have replaced it. Raise :class:`OSError`."""
        if self.reason and now_ms < self._look_ms:
            return False
        self._look_ms = now_ms + LOOK_MS
        if self._drops:
            self._exchange.discard()
            self._drops = False
        if self._exchange.adopt():
            self._wanted, self.reason = None, ""
        elif self._wanted is not None:
            self._exchange.want(self._wanted)
            refused = self._exchange.refused()
            if refused is not None and refused.begin == self._wanted.begin:
                self.reason = refused.reason
        return not self.reason

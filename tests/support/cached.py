"""What takes long to make and is kept, so that one test process makes it once for all."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only process in here; the kernel ends the lock of a process that was killed."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``, without what a killed process has left of an earlier one."""
    draft = target.with_name(f"{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)

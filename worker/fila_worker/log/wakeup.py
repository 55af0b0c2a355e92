"""A descriptor by which a thread wakes the worker's loop."""

import os
from contextlib import suppress


class Wakeup:
    """Readable from :meth:`set`, in any thread, until :meth:`clear`."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the loop, now or at its next wait."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Let the loop sleep again. Call it before looking for what has changed."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor. No thread may call :meth:`set` any more."""
        os.close(self.descriptor)

"""How the copy of a shard begins anew, when it can't follow the log.

- The log begins behind the copy's position, because the copy is new, or was away for long. It needs a checkpoint.
- The copy has changes that are not in the log. They were never confirmed, so it is dropped, and begins with the log, or with a checkpoint.

A log that has lost what was confirmed is none of these: the copies may be all that is left of it, and people must decide.
"""

from typing import Final

from fila_worker.log.partition import TrimmedError
from fila_worker.replication.log_checkpoints.exchange import Exchange, Wanted

LOOK_MS: Final = 500
"""Between two looks at whether a checkpoint was brought."""


class Beginning:
    """The copy of one shard, while it is not open.

    ``log``: the name of the log; None: the cluster has no target for checkpoints.
    """

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
                f"the log of the shard begins at offset {begin}, this host's copy needs offset {error.details['offset']}, and no target for "
                "checkpoints is configured: name the one that the other hosts use in [replication] checkpoint, and start this host again"
            )
            return
        self._wanted = Wanted(self._log, self._exchange.shard, self._shards, begin)
        self.reason = f"it waits for a checkpoint at offset {begin} of the log or later"

    def drop(self) -> None:
        """Drop the copy before it is opened again: it has what is not in the log."""
        self._drops = True

    def ready(self, now_ms: int) -> bool:
        """Return whether the copy may be opened. It may have been replaced by a checkpoint. Raise :class:`OSError`."""
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

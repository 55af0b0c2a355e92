"""Keep and bring checkpoints until asked to stop: in a thread each, because a host that begins must not wait for the others' checkpoints."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from fila_cluster.run.backup.log_checkpoints.keeping import bring, keep
from fila_cluster.run.backup.process import cause
from fila_cluster.run.backup.settings import KeeperSettings
from fila_cluster.run.backup.target import Target, target_at
from fila_process.journal import Journal
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.events import CheckpointTransferFailed, Event
from fila_worker.replication.log_checkpoints.exchange import Exchange, Refused, exchanges_of

LOOK_S: Final = 0.5
"""How often to see whether there is something to do."""
RETRY_S: Final = 10.0
"""After a failure, for the same shard."""

Work = Callable[[Exchange, Target], Event | None]


def begin(settings: KeeperSettings, journal: Journal) -> None:
    """Keep and bring checkpoints from now on."""
    for work in (keep, bring):
        Thread(target=Rounds(settings, journal, work).work, name=work.__name__, daemon=True).start()


class Rounds:
    """One kind of work, for all shards of this host in turn."""

    def __init__(self, settings: KeeperSettings, journal: Journal, work: Work) -> None:
        self._settings, self._journal, self._work = settings, journal, work
        self._not_before: dict[int, float] = {}
        """When to try again what has failed, by shard."""
        self._told: dict[int, tuple[str, str]] = {}
        """Why it failed, by shard: the same again is not logged."""

    def work(self) -> None:
        """Go on for ever."""
        while True:
            self.round()
            time.sleep(LOOK_S)

    def round(self) -> None:
        """See once what each shard needs."""
        for exchange in exchanges_of(Path(self._settings.data_dir)):
            if time.monotonic() < self._not_before.get(exchange.shard, 0):
                continue
            try:
                event = self._work(exchange, target_at(self._settings.target))
            except Exception as error:  # a bug, too, is logged: the other shards go on
                self._failed(exchange, error)
                continue
            self._told.pop(exchange.shard, None)
            if event is not None:
                self._journal.tell([event])

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        self._not_before[exchange.shard] = time.monotonic() + RETRY_S
        if isinstance(error, OverloadedError):
            return  # the host that led the shard before still writes
        code, reason = cause(error)
        if self._told.get(exchange.shard) != (code, reason):
            self._told[exchange.shard] = code, reason
            self._journal.tell([CheckpointTransferFailed(self._settings.target, exchange.shard, code, reason)])
        with suppress(OSError):  # the disk refuses this, too
            wanted = exchange.wanted() if self._work is bring else None
            if wanted is not None:
                exchange.refuse(
                    Refused(wanted.begin, reason or f"no checkpoint could be brought ({code}): see this host's log")
                )

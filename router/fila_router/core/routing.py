"""The worker of each shard, as the workers register, ordered by epochs. Kept in memory only."""

from collections import defaultdict
from typing import Any, Final, get_args

import msgspec

from fila_admission.in_flight import InFlight
from fila_admission.refusals import unavailable
from fila_proto_zmq import commands as wire
from fila_proto_zmq import outages
from fila_proto_zmq.errors import InvalidArgumentError, InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.names import check_routing_key, shard_of
from fila_router.core.limits import DEFAULTS, RouterLimits
from fila_router.core.worker_state import WorkerState

_TRANSFERS: Final = (wire.TransferMessages, wire.MessagesTransferred, wire.Appoint, wire.Appointed)
_BATCHES: Final = (wire.JoinBatch, wire.BatchJoined, wire.SealParts, wire.ReportParts, wire.ForgetParts)
_PLACES: Final = (wire.ReportPlaces, wire.GrantPlaces)
RELAYED: Final = frozenset(command.opcode for command in _TRANSFERS + _BATCHES + _PLACES + get_args(wire.ChangesByBroker))
"""Opcodes of the messages between shards, which name the shard that they are for."""


class _Addressed(msgspec.Struct, array_like=True, gc=False):
    """The first field of all these commands."""

    to_shard: int


_decode = msgspec.msgpack.Decoder(_Addressed).decode


def addressee(body: Any) -> int:
    """Return the shard that a body is for. Raise :class:`InvalidFrameError` if it does not name a shard."""
    try:
        return _decode(body).to_shard
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise InvalidFrameError(f"a body of {len(body)} bytes does not name its shard: {cause}") from None


CLUSTER_SHARD: Final = 0
"""The shard whose worker keeps state of the whole cluster.

It checks and numbers the changes of the runtime config, stores the API keys, and lends the token bank to a router.
"""

CACHED_KEYS_MAX: Final = 200_000
"""Routing keys whose shard is remembered (about 100 bytes each); beyond that the cache is emptied."""


class RoutingTable:
    """Shards, their owners and epochs. Invariant: every owner is in ``workers``."""

    def __init__(self, shards_total: int, limits: RouterLimits = DEFAULTS) -> None:
        self._limits = limits
        self.owners: list[WorkerState | None] = [None] * shards_total
        self.epochs: list[int] = [0] * shards_total
        self.releasing: dict[int, WorkerState] = {}
        """The last owners of shards that get no requests, because they are about to go to another worker."""
        self.coming: dict[int, tuple[WorkerState, str]] = {}
        """The next owners of shards that no worker serves now because the last owners have closed them, with the reason."""
        self.workers: dict[bytes, WorkerState] = {}
        self.began_ms: int | None = None
        """When the router ticked first; None: not yet."""
        self._shards: dict[bytes, int] = {}

    def shard_of(self, key: bytes) -> int:
        """Return the shard of a routing key. Raise :class:`InvalidArgumentError` if it is not a queue name."""
        shard = self._shards.get(key)
        return self._place(key) if shard is None else shard

    def _place(self, key: bytes) -> int:
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise InvalidArgumentError(f"a routing key of {len(key)} bytes is not UTF-8: send the queue's name") from None
        shard = shard_of(check_routing_key(name), len(self.owners))
        if len(self._shards) >= CACHED_KEYS_MAX:
            self._shards.clear()
        self._shards[key] = shard
        return shard

    def shards_of(self, worker: WorkerState) -> list[int]:
        """Return the shards whose last owner is ``worker``."""
        return [shard for shard, owner in enumerate(self.owners) if owner is worker]

    def owner_of(self, shard: int) -> WorkerState | None:
        """Return the last owner, up or not; None also if there is no such shard."""
        return self.owners[shard] if 0 <= shard < len(self.owners) else None

    def holds(self, worker: WorkerState, shard: int) -> bool:
        """Return whether a worker has a shard, also one that it is about to release."""
        return self.owners[shard] is worker or self.releasing.get(shard) is worker

    # --- moves --------------------------------------------------------------------------------------------------------

    def release(self, shard: int) -> None:
        """Send no more requests for a shard. Its owner still answers those that it has, and pushes its deliveries."""
        owner, self.owners[shard] = self.owners[shard], None
        assert owner is not None
        self.releasing[shard] = owner

    def keep(self, shard: int) -> None:
        """Give a shard back to its owner, if no worker has registered it meanwhile."""
        owner = self.releasing.pop(shard, None)
        if owner is not None and self.owners[shard] is None and self.workers.get(owner.identity) is owner:
            self.owners[shard] = owner

    def hand_on(self, shard: int, target: WorkerState, source: WorkerState) -> None:
        """Note that the last owner of a shard has closed it, and that the next one is about to open it."""
        self.releasing.pop(shard, None)
        self.coming[shard] = target, f"it comes from {source.name}"

    # --- workers ------------------------------------------------------------------------------------------------------

    def live_owner(self, shard: int) -> WorkerState:
        """Return the worker that serves ``shard`` now. Raise :class:`ShardUnavailableError` if no worker does."""
        owner = self.owners[shard]
        if owner is None or not owner.routable:
            raise self.unavailable(shard)
        return owner

    def unavailable(self, shard: int) -> ShardUnavailableError:
        """Return the error for a shard without a live owner, with the reason that its worker gave, if that worker lives."""
        owner = self.owners[shard]
        outage = self._outage_of(shard) if owner is None or not owner.routable else None
        return unavailable(shard) if outage is None else outages.unavailable(outage)

    def _outage_of(self, shard: int) -> wire.ShardOutage | None:
        """Return why a shard is not served. The report of a worker that only follows the shard counts least."""
        living = (worker for worker in self.workers.values() if worker.routable)
        reported = [outage for worker in living for outage in self._outages_of(worker) if outage.shard == shard]
        return min(reported, key=lambda outage: outage.state == outages.FOLLOWING, default=None)

    def _outages_of(self, worker: WorkerState) -> list[wire.ShardOutage]:
        reported = {outage.shard for outage in worker.outages}
        coming = [
            wire.ShardOutage(shard, outages.OPENING, reason)
            for shard, (target, reason) in self.coming.items()
            if target is worker and shard not in reported
        ]
        return worker.outages + coming

    def register(self, identity: bytes, offer: wire.Register, now_ms: int) -> list[tuple[WorkerState, frozenset[int]]]:
        """Make the worker the owner of the shards that it offers, and of no others.

        The offer has passed :meth:`check_offer`. Returns the shards that changed hands or epochs, by their previous owners:
        requests for those are lost.
        """
        worker = self.workers.get(identity)
        if worker is None:
            worker = self.workers[identity] = WorkerState(
                identity, offer.pid, offer.version, now_ms, in_flight=InFlight(self._limits)
            )
        worker.registered(offer)
        worker.seen(now_ms)
        superseded = self._hand_over(worker, dict(offer.shards))
        self._forget_idle()
        return superseded

    def check_offer(self, identity: bytes, offer: wire.Register) -> None:
        """Raise :class:`InvalidArgumentError` if the offer is malformed or a shard's epoch is outdated."""
        if offer.worker.encode() != identity:
            raise InvalidArgumentError(f"worker {offer.worker!r} registers as {identity!r}: the two names must agree")
        if not offer.shards and not offer.outages and not offer.home:  # shards may be moved to a worker with a home
            raise InvalidArgumentError(f"worker {offer.worker!r} offers no shards: give it at least one")
        for shard, epoch in offer.shards:
            self._check_shard(identity, shard, epoch)

    def _check_shard(self, identity: bytes, shard: int, epoch: int) -> None:
        if not 0 <= shard < len(self.owners):
            raise InvalidArgumentError(f"no shard {shard} here: this cluster has shards 0 to {len(self.owners) - 1}")
        owner, known = self.owners[shard], self.epochs[shard]
        foreign = owner is not None and owner.identity != identity
        if epoch < known or (foreign and epoch == known):
            holder = owner.name if owner else "another worker"
            raise InvalidArgumentError(
                f"shard {shard} was opened by {holder} with epoch {known}, epoch {epoch} is outdated: stop this worker, "
                "or, if it has an earlier state of the shard that is to stay, restart the router"
            )

    def _hand_over(self, worker: WorkerState, offered: dict[int, int]) -> list[tuple[WorkerState, frozenset[int]]]:
        changed: defaultdict[WorkerState, set[int]] = defaultdict(set)
        for shard, owner in enumerate(self.owners):
            if owner is worker and shard not in offered:
                changed[owner].add(shard)
                self.owners[shard] = None
        for shard, releaser in list(self.releasing.items()):
            if releaser is worker and offered.get(shard) != self.epochs[shard]:  # the worker was restarted, or has closed it
                changed[worker].add(shard)
                del self.releasing[shard]
        for shard, epoch in offered.items():
            if self.releasing.get(shard) is worker:
                continue  # the worker has not read the request to release it yet
            self.releasing.pop(shard, None)
            owner = self.owners[shard]
            if owner is not None and (owner is not worker or epoch > self.epochs[shard]):
                changed[owner].add(shard)
            self.owners[shard] = worker
            self.epochs[shard] = epoch
            self.coming.pop(shard, None)
        return [(owner, frozenset(shards)) for owner, shards in changed.items()]

    def _forget_idle(self) -> None:
        owners = set(self.owners)
        owners.update(self.releasing.values())
        self.workers = {
            identity: worker
            for identity, worker in self.workers.items()
            if worker in owners or worker.outages or (worker.home and worker.routable)
        }

    def forgive_silence(self, now_ms: int) -> None:
        """Count no silence before now, because this process did not read."""
        for worker in self.workers.values():
            worker.seen_ms = now_ms

    def status(self) -> list[wire.WorkerStatus]:
        """Return all workers by name, lost ones included."""
        return [
            wire.WorkerStatus(
                worker.name,
                worker.pid,
                worker.state,
                [shard for shard in range(len(self.owners)) if self.holds(worker, shard)],
                worker.rss_bytes,
                worker.queues,
                self._outages_of(worker),
                worker.draining,
            )
            for worker in sorted(self.workers.values(), key=lambda worker: worker.identity)
        ]

"""Changes of the API keys, on which all routers of a cluster agree.

::

    client ── RevokeKey ──▶ router ── StoreKeys ──▶ leader of shard 0     keeps all keys in the shard's log, with a version
    client ◀──── Done ───── router ◀──── Done ─────
                            other routers ◀── Pulse ── leader of shard 0  names the version that it has
                            other routers ── FetchKeys ──▶

A router computes the new keys, and the leader takes them only as the next version. So if two routers change the keys at the
same time, one is refused, fetches the keys that the other one stored, and its client tries again. Each router keeps a copy in
its key file, to admit clients before it has an answer of shard 0. Pulses are repeated, so a lost frame does no harm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fila_admission.keys import Key
from fila_admission.refusals import RETRY_S, interrupted, too_busy
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.commands import ApiKey, Command, Done, FetchKeys, Reply, StoredKeys, StoreKeys
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import ERROR, Header
from fila_proto_zmq.limits import API_KEYS_BYTES_MAX
from fila_router.core.answers import ReturnAddress, error_in
from fila_router.core.feature import ClientRequest, RouterState
from fila_router.core.keys.access import Access
from fila_router.core.routing import CLUSTER_SHARD
from fila_router.core.worker_state import WorkerState

CHANGE_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, so that the client gets this error."""

FIRST_WORD_MS_MAX: Final = 3000
"""How long a new router refuses clients until it has the keys of the log: its file may have one that was revoked."""

ASK_MS: Final = 1000
"""How long to wait for an answer of the leader before it is asked again."""


@dataclass(slots=True)
class PendingKeyChange:
    """A client's change under way, with the keys, the answer and the events that it brings if it is stored."""

    number: int
    leader: WorkerState
    address: ReturnAddress
    deadline_ms: int
    records: list[ApiKey]
    reply: Reply
    notes: list[Event]


class KeyReplication:
    """The change under way, at most one, and the requests to the leader of shard 0."""

    def __init__(self, access: Access, state: RouterState, followed: Callable[[int, bytes], None]) -> None:
        """``followed(now_ms, client)``: called when the keys have changed, by ``client`` if it is not empty."""
        self._access = access
        self._state = state
        self._table = state.table
        self._outgoing = state.outgoing
        self._followed = followed
        self._change: PendingKeyChange | None = None
        self._asked = 0
        self._own: tuple[int, list[ApiKey]] | None = None
        """The keys that this router stores as the first version, with the number of that request."""
        self._ask_again_ms = 0
        self.waiting = True
        """Whether this router does not have the keys of the log yet, and its own may be outdated."""
        self._waits_until_ms: int | None = None

    def check_known(self) -> None:
        """Raise while the keys of the log are missing: the client tries again."""
        if self.waiting:
            raise ShardUnavailableError(
                "this router has just started and does not have the cluster's API keys yet: try again in a moment",
                retry_after=RETRY_S,
                details={"refused": True},
            )

    def change(self, request: ClientRequest, asking: Key, command: Command) -> Reply | None:
        """Carry out a command about keys. A change is answered when it is stored. Raise the error that refuses it."""
        now_ms = request.now_ms
        draft = self._access.draft()
        try:
            reply = draft.obey(asking, command, self._state.wall_ms(now_ms))
        except InvalidArgumentError:
            self._table.live_owner(CLUSTER_SHARD)  # while it has none, the latest keys may be missing here
            raise
        if not draft.changed:
            return reply
        leader = self._table.live_owner(CLUSTER_SHARD)
        if self._change is not None:
            raise too_busy("another change of the API keys is under way")
        records = draft.records()
        number = self._store(leader, self._access.version + 1, records, now_ms)
        deadline_ms = now_ms + CHANGE_MS_MAX
        self._change = PendingKeyChange(number, leader, request.address, deadline_ms, records, reply, draft.notes)
        return None

    def _store(self, leader: WorkerState, version: int, records: list[ApiKey], now_ms: int) -> int:
        store = StoreKeys(version, records)
        if len(encode_body(store)) > API_KEYS_BYTES_MAX:
            raise OverloadedError(
                f"all API keys together would take more than {API_KEYS_BYTES_MAX >> 20} MiB: "
                "revoke some, or give them fewer permissions"
            )
        return self._ask(leader, store, now_ms)

    def _ask(self, leader: WorkerState, command: StoreKeys | FetchKeys, now_ms: int) -> int:
        self._asked = max(self._asked + 1, now_ms)  # an answer to an earlier router has another number
        self._ask_again_ms = now_ms + ASK_MS
        self._outgoing.send([leader.identity], command, self._asked)
        return self._asked

    # --- the leader of shard 0 ------------------------------------------------------------------------------------------

    def pulsed(self, worker: WorkerState, version: int, now_ms: int) -> None:
        """Ask the leader of shard 0 for its keys if it has others, or give it this router's keys if it has none."""
        if self._table.owners[CLUSTER_SHARD] is not worker:
            return
        if version == self._access.version or not version:
            self._confirm_own(now_ms)
        if version == self._access.version and version:
            return
        if self._change is not None or now_ms < self._ask_again_ms:
            return
        if version:
            self._ask(worker, FetchKeys(), now_ms)
        elif records := self._access.draft().records():
            self._own = self._store(worker, 1, records, now_ms), records

    def answered(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        """Take in an answer of the leader of shard 0."""
        if not self._table.holds(worker, CLUSTER_SHARD):
            return
        if header.opcode == FetchKeys.opcode:
            self._fetched(header, body, now_ms)
        elif self._change is not None and header.request == self._change.number:
            self._stored(self._change, header, body, now_ms)
        elif self._own is not None and header.request == self._own[0]:
            (_, records), self._own = self._own, None
            if not header.flags & ERROR:
                self._follow(1, records, now_ms)

    def _fetched(self, header: Header, body: bytes, now_ms: int) -> None:
        try:
            stored = None if header.flags & ERROR else decode_body(StoredKeys, body)
        except FilaError:
            return
        if stored is not None and stored.version and self._change is None and header.request == self._asked:
            self._ask_again_ms = now_ms
            self._follow(stored.version, stored.keys, now_ms)

    def _stored(self, change: PendingKeyChange, header: Header, body: bytes, now_ms: int) -> None:
        self._change = None
        self._ask_again_ms = now_ms
        try:
            if header.flags & ERROR:
                raise error_in(body)
            decode_body(Done, body)
        except InvalidArgumentError:
            error = ShardUnavailableError(
                "the API keys were changed at another router at the same time, and this change was not made: try again",
                retry_after=RETRY_S,
                details={"refused": True},
            )
            self._outgoing.refuse(change.address, error)
        except FilaError as failure:
            self._outgoing.refuse(change.address, failure)
        else:
            self._follow(self._access.version + 1, change.records, now_ms, change.address.client)
            self._outgoing.notes += change.notes
            self._outgoing.answer(change.address, change.reply)

    def _confirm_own(self, now_ms: int) -> None:
        """Use this router's own keys: the log has no others, or does not answer."""
        if self.waiting:
            self.waiting = False
            self._followed(now_ms, b"")

    def _follow(self, version: int, records: list[ApiKey], now_ms: int, changed_by: bytes = b"") -> None:
        self._access.follow(version, records)
        self.waiting = False
        self._followed(now_ms, changed_by)

    # --- ends without an answer -----------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Fail a change whose leader was lost, or does not answer. Called at each tick."""
        if self._waits_until_ms is None:
            self._waits_until_ms = now_ms + FIRST_WORD_MS_MAX
        if now_ms >= self._waits_until_ms:  # else an outage of the leader would be one of all clients
            self._confirm_own(now_ms)
        change = self._change
        if change is None:
            return
        error: FilaError
        if self._table.owners[CLUSTER_SHARD] is not change.leader or not change.leader.routable:
            error = interrupted(CLUSTER_SHARD)
        elif now_ms >= change.deadline_ms:
            error = RequestTimeoutError(
                f"the change may be made, but {change.leader.name} did not answer in {CHANGE_MS_MAX / 1000:g} s: "
                "see whether it is made"
            )
        else:
            return
        self._change = None
        self._outgoing.refuse(change.address, error)

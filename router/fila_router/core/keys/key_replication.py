"""How a change of the API keys reaches all routers of a cluster.

::

    client ── RevokeKey ──▶ router ── StoreKeys ──▶ leader of shard 0     keeps all keys in the shard's log, with a version
    client ◀──── Done ───── router ◀──── Done ─────
                            other routers ◀── Pulse ── leader of shard 0  says which version it has
                            other routers ── FetchKeys ──▶

A router computes the new keys, and the leader takes them only as the next version. So of two routers that change the keys at the same
time one is refused, fetches what the other one stored, and its client tries again. Each router keeps a copy in its key file, to let clients
in before it has heard of shard 0. Pulses are repeated, so a lost frame does no harm.
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
from fila_router.core.answers import Outgoing, error_in
from fila_router.core.config_replication import OWNER
from fila_router.core.keys.access import Access
from fila_router.core.routing import RoutingTable
from fila_router.core.worker_state import Worker

CHANGE_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, so that the client gets this error."""

FIRST_WORD_MS_MAX: Final = 3000
"""How long a router that has just started serves nobody because it does not have the log's keys: its file may have one that was revoked."""

ASK_MS: Final = 1000
"""When to ask the leader again that has not answered."""


@dataclass(slots=True)
class Change:
    """A client's change under way, with what holds if it is stored."""

    number: int
    leader: Worker
    client: bytes
    header: bytes
    key: bytes
    deadline_ms: int
    records: list[ApiKey]
    reply: Reply
    notes: list[Event]


class KeyReplication:
    """The change under way, at most one, and what was asked of the leader of shard 0."""

    def __init__(
        self, access: Access, table: RoutingTable, outgoing: Outgoing, followed: Callable[[int, bytes], None]
    ) -> None:
        """``followed(now_ms, client)``: called when other keys hold; ``client``: who changed them here, b"": nobody did."""
        self._access = access
        self._table = table
        self._outgoing = outgoing
        self._followed = followed
        self._change: Change | None = None
        self._asked = 0
        self._own: tuple[int, list[ApiKey]] | None = None
        """The first version, by the number of the request to store it, if this router wants to store its keys as that."""
        self._ask_again_ms = 0
        self.waiting = True
        """Whether the keys in the log are not known yet, and this router's own may be outdated."""
        self._waits_until_ms: int | None = None

    def check_known(self) -> None:
        """Raise while the keys are not known: the client tries again."""
        if self.waiting:
            raise ShardUnavailableError(
                "this router has just started and does not have the cluster's API keys yet: try again in a moment",
                retry_after=RETRY_S,
                details={"refused": True},
            )

    def change(
        self, client: bytes, header: bytes, key: bytes, asking: Key, command: Command, now_ms: int, wall_ms: int
    ) -> None:
        """Carry out a client's command about keys; a change is answered when it is stored. Raise the error that refuses it."""
        draft = self._access.draft()
        reply = draft.obey(asking, command, wall_ms)
        if not draft.changed:
            self._outgoing.answer(client, header, key, reply)
            return
        leader = self._table.live_owner(OWNER)
        if self._change is not None:
            raise too_busy("another change of the API keys is under way")
        records = draft.records()
        number = self._store(leader, self._access.version + 1, records, now_ms)
        deadline_ms = now_ms + CHANGE_MS_MAX
        self._change = Change(number, leader, client, header, key, deadline_ms, records, reply, draft.notes)

    def _store(self, leader: Worker, version: int, records: list[ApiKey], now_ms: int) -> int:
        store = StoreKeys(version, records)
        if len(encode_body(store)) > API_KEYS_BYTES_MAX:
            raise OverloadedError(
                f"all API keys together would take more than {API_KEYS_BYTES_MAX >> 20} MiB: revoke some, or give them fewer permissions"
            )
        return self._ask(leader, store, now_ms)

    def _ask(self, leader: Worker, command: StoreKeys | FetchKeys, now_ms: int) -> int:
        self._asked = max(self._asked + 1, now_ms)  # an answer to an earlier router has another number
        self._ask_again_ms = now_ms + ASK_MS
        self._outgoing.tell([leader.identity], command, self._asked)
        return self._asked

    # --- the leader of shard 0 ------------------------------------------------------------------------------------------

    def pulsed(self, worker: Worker, version: int, now_ms: int) -> None:
        """Ask the leader of shard 0 for its keys if it has others, or give it this router's keys if it has none."""
        if self._table.owners[OWNER] is not worker:
            return
        if version == self._access.version or not version:
            self._learnt(now_ms)
        if version == self._access.version and version:
            return
        if self._change is not None or now_ms < self._ask_again_ms:
            return
        if version:
            self._ask(worker, FetchKeys(), now_ms)
        elif records := self._access.draft().records():
            self._own = self._store(worker, 1, records, now_ms), records

    def heard(self, worker: Worker, header: Header, body: bytes, now_ms: int) -> None:
        """Take in an answer of the leader of shard 0."""
        if not self._table.holds(worker, OWNER):
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

    def _stored(self, change: Change, header: Header, body: bytes, now_ms: int) -> None:
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
            self._outgoing.refuse(change.client, change.header, change.key, error)
        except FilaError as failure:
            self._outgoing.refuse(change.client, change.header, change.key, failure)
        else:
            self._follow(self._access.version + 1, change.records, now_ms, change.client)
            self._outgoing.notes += change.notes
            self._outgoing.answer(change.client, change.header, change.key, change.reply)

    def _learnt(self, now_ms: int) -> None:
        """Note that the log has no other keys than this router."""
        if self.waiting:
            self.waiting = False
            self._followed(now_ms, b"")

    def _follow(self, version: int, records: list[ApiKey], now_ms: int, changed_by: bytes = b"") -> None:
        self._access.follow(version, records)
        self.waiting = False
        self._followed(now_ms, changed_by)

    # --- ends without an answer -----------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Fail a change whose leader was lost, or does not answer. Call it a few times a second."""
        if self._waits_until_ms is None:
            self._waits_until_ms = now_ms + FIRST_WORD_MS_MAX
        if now_ms >= self._waits_until_ms:  # better its own keys than an outage as long as the leader's
            self._learnt(now_ms)
        change = self._change
        if change is None:
            return
        error: FilaError
        if self._table.owners[OWNER] is not change.leader or not change.leader.routable:
            error = interrupted(OWNER)
        elif now_ms >= change.deadline_ms:
            error = RequestTimeoutError(
                f"the change may be made, but {change.leader.name} did not answer in {CHANGE_MS_MAX / 1000:g} s: see whether it is made"
            )
        else:
            return
        self._change = None
        self._outgoing.refuse(change.client, change.header, change.key, error)

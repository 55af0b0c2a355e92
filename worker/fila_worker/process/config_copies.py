"""The runtime config of a worker's shards. Each has a copy, and all are brought to the latest version.

Shard 0 checks and numbers the changes, and keeps the API keys of the cluster, too.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, get_args

from fila_proto_zmq import outages, runtime_config
from fila_proto_zmq.commands import (
    ChangesByBroker,
    ChangesConfig,
    ConfigChange,
    ConfigTaken,
    ConfigValues,
    FetchKeys,
    GetConfig,
    GetTemplate,
    ListConfig,
    ListConfigHistory,
    ListTemplates,
    PutConfig,
    Registered,
    Reply,
    SetConfig,
    StoreKeys,
    Template,
    TemplateList,
    put_whole,
)
from fila_proto_zmq.errors import FilaError, ShardUnavailableError
from fila_proto_zmq.templates import Templates
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import ClientCall, answer
from fila_worker.core.shard import Shard
from fila_worker.process.feature import IN_PASSING, ProcessFeature
from fila_worker.process.slots import Slot

if TYPE_CHECKING:
    from fila_worker.process.shard_process import ShardProcess

_Reply = TypeVar("_Reply", bound=Reply)

CONFIG_OWNER: Final = 0
"""The shard that checks and numbers changes of the runtime config."""

TEMPLATES_PAGE_BYTES: Final = 512 * 1024
"""The bytes of one page of templates, and of one more template."""

TEMPLATE_BYTES: Final = 256
"""The bytes that a template counts as, without its scripts."""

RETURN_MS: Final = 5000
"""How long a change may take to come back from the router: longer than a client waits for it."""


class ConfigCopies(ProcessFeature):
    """The copies of the shards of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = {
            PutConfig: self._take,
            ListConfig: self._list,
            ListConfigHistory: lambda call, command: self._owner(),
            GetConfig: self._get,
            GetTemplate: self._templates,
            ListTemplates: self._templates,
            StoreKeys: self._keep_keys,
            FetchKeys: self._keep_keys,
            **dict.fromkeys(get_args(ChangesConfig), self._change),
        }
        self.pages: deque[tuple[Slot, PutConfig]] = deque()
        """A large config for shards that lack it, a page for each turn. No frames are read until it is empty."""
        self.page_read = False
        """Whether a page of a config was read in this turn. All shards apply it, so one page a turn is enough."""
        self._to_be_leveled = False
        self._made = (0, 0)
        """The epoch of the owner when the last change was made here, and the number of the commit with it."""
        self._lost_ms: int | None = None
        """When the last change is lost that was made here and did not come back; None: it has come."""

    def attach(self, process: "ShardProcess", now_ms: int) -> None:
        """Bring the shards that are open to the latest config."""
        super().attach(process, now_ms)
        self.level(now_ms)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> list[Shard]:
        return list(self.process.shards.values())

    @property
    def version(self) -> int:
        """The version of the latest copy."""
        return max((shard.config_version for shard in self._open), default=0)

    @property
    def values(self) -> dict[str, str]:
        """The latest copy."""
        shards = self._open
        return max(shards, key=lambda shard: shard.config_version).config if shards else {}

    def parks(self) -> dict[str, int]:
        """Return the throttle keys that deliver nothing, each with the end of its park, Unix ms."""
        parks: dict[str, int] = {}
        for shard in self._open:
            for key, until_ms in shard.parks().items():
                parks[key] = max(until_ms, parks.get(key, 0))
        return parks

    # --- commands -----------------------------------------------------------------------------------------------------

    def _take(self, call: ClientCall, put: PutConfig) -> Reply | None:
        """Apply a change that the router passes on, or a page of one."""
        if not self.put(put, call.now_ms):
            return None
        if put.page and self._open and self.version < put.version:
            self.process.offers += 1  # a page was lost: the router sends all pages again after the registration
            return None
        return ConfigTaken(self.having(put.version))

    def _list(self, call: ClientCall, command: ListConfig) -> Slot | Reply:
        shards = self.process.shards
        return self.process.slots[min(shards)] if shards else ConfigValues({})  # the router sent it to that shard

    def _get(self, call: ClientCall, command: GetConfig) -> Reply:
        if runtime_config.is_kept(command.key):
            return ConfigValues({})
        value = runtime_config.read(command.key, self.values)
        return ConfigValues({} if value is None else {command.key: value})

    def _templates(self, call: ClientCall, command: GetTemplate | ListTemplates) -> TemplateList:
        """Return a template, or a page of them."""
        shards = self._open
        known = max(shards, key=lambda shard: shard.config_version).templates if shards else Templates()
        if isinstance(command, GetTemplate):
            options = known.get(command.pattern)
            return TemplateList([] if options is None else [Template(command.pattern, options)])
        page = TemplateList([])
        room_bytes = TEMPLATES_PAGE_BYTES
        for pattern, options in known.listed(command.prefix, command.after):
            if room_bytes <= 0:
                page.more = True
                break
            page.templates.append(Template(pattern, options))
            room_bytes -= TEMPLATE_BYTES + len(options.on_enqueue or "") + len(options.on_failure or "")
        return page

    def _owner(self) -> Slot:
        """Return the slot of the shard that numbers the changes. Raise :class:`ShardUnavailableError` if it is not here."""
        owner = self.process.slots.get(CONFIG_OWNER)
        if owner is None:
            raise ShardUnavailableError(f"the config is set on shard {CONFIG_OWNER}, which is not here")
        return owner

    @property
    def keys_version(self) -> int:
        """The version of the API keys that are kept here; 0: none, or another worker keeps them."""
        owner = self.process.slots.get(CONFIG_OWNER)
        return 0 if owner is None or owner.shard is None else owner.shard.keys_version

    @property
    def unsettled(self) -> bool:
        """Whether the owner's log has yet to confirm a change. Until then it may be lost, so it must not leave the shard."""
        epoch, number = self._made
        owner = self.process.slots.get(CONFIG_OWNER)
        shard = None if owner is None else owner.shard
        return shard is not None and shard.epoch == epoch and shard.store.confirmed < number

    def _change(self, call: ClientCall, command: ChangesConfig) -> None:
        owner, change = self._made_change(command, call.now_ms)
        owner.answers.append(answer(call, command, change))

    def change(self, command: ChangesByBroker, now_ms: int) -> None:
        """Make a change that a shard asks for, if the shard that numbers changes is here. The routers get it unasked."""
        with suppress(FilaError):
            owner, change = self._made_change(command, now_ms)
            if change.changes:
                owner.answers.append(answer(ClientCall(b"", 0, "", now_ms), SetConfig, change))

    def _made_change(self, command: ChangesConfig | ChangesByBroker, now_ms: int) -> tuple[Slot, ConfigChange]:
        owner = self._owner()
        change = self._on_owner(owner, now_ms, lambda shard: shard.set_config(command, now_ms))
        if change.changes:  # else there is no commit for it
            assert owner.shard is not None
            self._made = owner.shard.epoch, owner.shard.store.committed + 1
            self._lost_ms = now_ms + RETURN_MS
            self.timer.by(self._lost_ms)
        return owner, change

    def _keep_keys(self, call: ClientCall, command: StoreKeys | FetchKeys) -> None:
        owner = self._owner()
        reply = self._on_owner(owner, call.now_ms, lambda shard: shard.keep_keys(command))
        owner.answers.append(answer(call, command, reply))

    def _on_owner(self, owner: Slot, now_ms: int, action: Callable[[Shard], _Reply]) -> _Reply:
        reply = self.process.guarded(owner, now_ms, action)
        if reply is None:
            assert owner.outage is not None
            raise outages.unavailable(owner.outage)
        return reply

    def put(self, put: PutConfig, now_ms: int) -> bool:
        """Apply a change, or a page of one. Return whether it is complete, so that it is answered."""
        if put.version >= self.version:
            self._lost_ms = None
        for slot in self.process.slots.values():
            self._put(slot, put, now_ms)
        self.page_read = put.page > 0 or put.more
        self._wait_for_turn()
        if put.more:
            return False
        if put.page and len({shard.config_version for shard in self._open}) > 1:
            self.level(now_ms)  # a shard began to serve between two pages
        return True

    def having(self, version: int) -> list[int]:
        """Return the shards that have a version, or a later one. Their logs may have yet to confirm it."""
        return sorted(shard.index for shard in self._open if shard.config_version >= version)

    def _put(self, slot: Slot, put: PutConfig, now_ms: int) -> None:
        self.process.guarded(slot, now_ms, lambda shard: shard.put_config(put, now_ms))

    def registered(self, reply: Registered, now_ms: int) -> None:
        """Take over the config and the parks with which the router answers a registration."""
        if reply.config is not None:
            put = PutConfig(reply.config_version, {**reply.config}, whole=True)
            for slot in self.process.slots.values():
                self._put(slot, put, now_ms)
        self._park(reply.parks, now_ms)
        if len({shard.config_version for shard in self._open}) > 1:
            self.level(now_ms)  # a change was lost on its way back from the owner, which is here

    def _park(self, parks: dict[str, int], now_ms: int) -> None:
        for slot in self.process.slots.values():
            self.process.guarded(slot, now_ms, lambda shard: shard.park(parks, now_ms))

    # --- the same for all ---------------------------------------------------------------------------------------------

    def level(self, now_ms: int, newcomer: Shard | None = None) -> None:
        """Bring all shards to the latest config among them: one may have been closed, or on another worker.

        ``newcomer``: the only shard that may have another config of the same version. An unconfirmed change delays this.
        """
        self._to_be_leveled = self.unsettled
        if not self._to_be_leveled:
            self._level(now_ms, newcomer)
        self._wait_for_turn()

    def _level(self, now_ms: int, newcomer: Shard | None) -> None:
        version, config, parks = self.version, self.values, self.parks()
        self._park(parks, now_ms)
        self.pages.clear()
        behind = [
            slot
            for slot in self.process.slots.values()
            if (shard := slot.shard) is not None
            and (shard.config_version != version or (newcomer in (None, shard) and shard.config != config))
        ]
        if not behind:
            return
        whole = put_whole(version, config)
        for put in whole:
            self.pages += ((slot, put) for slot in behind)
        if len(whole) == 1:
            self._send_page(now_ms)

    def on_open(self, shard: Shard, now_ms: int) -> None:
        """Bring a shard to the latest config, or the others to its."""
        self.level(now_ms, shard)

    def turn(self, now_ms: int) -> int | None:
        """Send the next page to all shards that lack it. Register again if no router seems to have heard of a change."""
        if self._lost_ms is not None and now_ms >= self._lost_ms:
            self._lost_ms = None
            self.process.offers += 1
        self.page_read = False
        if self._to_be_leveled:
            self.level(now_ms)
        if self.pages:
            self._send_page(now_ms)
        self._wait_for_turn()
        return self._lost_ms

    def _wait_for_turn(self) -> None:
        """Set the due time. Pages need a turn soon; the rest can wait for any turn."""
        if self.pages:
            self.timer.by(AT_ONCE)
        elif self.page_read or self._to_be_leveled:
            self.timer.by(IN_PASSING)

    def _send_page(self, now_ms: int) -> None:
        pages = self.pages
        page = pages[0][1].page if pages else None
        while pages and pages[0][1].page == page:
            self._put(*pages.popleft(), now_ms)

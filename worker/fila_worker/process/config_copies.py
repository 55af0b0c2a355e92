"""The runtime config of a worker's shards: each has a copy of its own, and all of them are brought to the latest one."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

from fila_proto_zmq import outages, runtime_config
from fila_proto_zmq.commands import (
    ChangesConfig,
    Command,
    ConfigChange,
    ConfigValues,
    FetchKeys,
    GetConfig,
    GetTemplate,
    ListConfig,
    ListTemplates,
    PutConfig,
    Registered,
    Reply,
    StoreKeys,
    Template,
    TemplateList,
    put_whole,
)
from fila_proto_zmq.errors import ShardUnavailableError
from fila_proto_zmq.templates import Templates
from fila_worker.core.shard import Shard
from fila_worker.process.slots import Slot

CONFIG_OWNER: Final = 0
"""The shard that checks and numbers changes of the runtime config."""

OF_THE_CONFIG: Final = (*get_args(ChangesConfig), GetConfig, ListConfig, GetTemplate, ListTemplates, StoreKeys, FetchKeys)
"""Commands that :meth:`ConfigCopies.reply` answers."""

TEMPLATES_PAGE_BYTES: Final = 512 * 1024
"""The bytes of one page of templates, and of one more template."""

TEMPLATE_BYTES: Final = 256
"""What a template without scripts counts as."""

Guarded: TypeAlias = Callable[[Slot, int, Callable[[Shard], Any]], Any]
"""Lets a shard do something and returns the result. The result is None if the shard is not open, or fails."""


class ConfigCopies:
    """The copies of the shards in some slots. ``guarded``: keeps the failure of one shard from the others."""

    def __init__(self, slots: Mapping[int, Slot], guarded: Guarded) -> None:
        self._slots = slots
        self._guarded = guarded
        self.pages: deque[tuple[Slot, PutConfig]] = deque()
        """A large config for shards that lack it, a page for each turn. No frames are read until it is empty."""
        self.page_read = False
        """Whether a page of a config was read in this turn. All shards apply it, so one page a turn is enough."""
        self._to_be_leveled = False
        self._made = (0, 0)
        """The epoch of the owner when the last change was made here, and the number of the commit with it."""

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> list[Shard]:
        return [slot.shard for slot in self._slots.values() if slot.shard is not None]

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

    def reply(self, command: Command, now_ms: int) -> Reply:
        """Answer a command about the config, or about the API keys, which the owner of the config keeps, too.

        A list comes here only if no shard is open.
        """
        if isinstance(command, ChangesConfig):
            return self._set(command, now_ms)
        if isinstance(command, (StoreKeys, FetchKeys)):
            return self._have_owner(now_ms, lambda shard: shard.keep_keys(command))
        if isinstance(command, (GetTemplate, ListTemplates)):
            return self._templates(command)
        if not isinstance(command, GetConfig) or runtime_config.is_template(command.key):
            return ConfigValues({})
        value = runtime_config.read(command.key, self.values)
        return ConfigValues({} if value is None else {command.key: value})

    def _templates(self, command: GetTemplate | ListTemplates) -> TemplateList:
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

    def owner(self) -> Slot:
        """Return the slot of the shard that numbers the changes. Raise :class:`ShardUnavailableError` if it is not here."""
        owner = self._slots.get(CONFIG_OWNER)
        if owner is None:
            raise ShardUnavailableError(f"the config is set on shard {CONFIG_OWNER}, which is not here")
        return owner

    @property
    def keys_version(self) -> int:
        """The version of the API keys that are kept here; 0: none, or another worker keeps them."""
        owner = self._slots.get(CONFIG_OWNER)
        return 0 if owner is None or owner.shard is None else owner.shard.keys_version

    @property
    def unsettled(self) -> bool:
        """Whether the owner's log has yet to confirm a change. Until then it may be lost, so nothing outside of the shard may hear of it."""
        epoch, number = self._made
        owner = self._slots.get(CONFIG_OWNER)
        shard = None if owner is None else owner.shard
        return shard is not None and shard.epoch == epoch and shard.store.confirmed < number

    def _set(self, command: ChangesConfig, now_ms: int) -> Reply:
        change = self._have_owner(now_ms, lambda shard: shard.set_config(command, now_ms))
        assert isinstance(change, ConfigChange)
        if change.changes:  # else there is no commit with it
            shard = self.owner().shard
            assert shard is not None
            self._made = shard.epoch, shard.store.committed + 1
        return change

    def _have_owner(self, now_ms: int, action: Callable[[Shard], Reply]) -> Reply:
        owner = self.owner()
        reply: Reply | None = self._guarded(owner, now_ms, action)
        if reply is None:
            assert owner.outage is not None
            raise outages.unavailable(owner.outage)
        return reply

    def put(self, put: PutConfig, now_ms: int) -> bool:
        """Apply a change, or a page of one. Return whether it is complete, so that it is answered."""
        for slot in self._slots.values():
            self._put(slot, put, now_ms)
        self.page_read = put.page > 0 or put.more
        if put.more:
            return False
        if put.page and len({shard.config_version for shard in self._open}) > 1:
            self.level(now_ms)  # a shard began to serve between two pages
        return True

    def having(self, version: int) -> list[int]:
        """Return the shards that have a version, or a later one. Their logs may have yet to confirm it."""
        return sorted(shard.index for shard in self._open if shard.config_version >= version)

    def _put(self, slot: Slot, put: PutConfig, now_ms: int) -> None:
        self._guarded(slot, now_ms, lambda shard: shard.put_config(put, now_ms))

    def registered(self, reply: Registered, now_ms: int) -> None:
        """Take over the config and the parks with which the router answers a registration."""
        if reply.config is not None:
            put = PutConfig(reply.config_version, {**reply.config}, whole=True)
            for slot in self._slots.values():
                self._put(slot, put, now_ms)
        self._park(reply.parks, now_ms)

    def _park(self, parks: dict[str, int], now_ms: int) -> None:
        for slot in self._slots.values():
            self._guarded(slot, now_ms, lambda shard: shard.park(parks, now_ms))

    # --- the same for all ---------------------------------------------------------------------------------------------

    def level(self, now_ms: int, newcomer: Shard | None = None) -> None:
        """Bring all shards to the latest config among them: one may have been down, or on another worker.

        ``newcomer``: the only shard that may have another config of the same version. While a change waits to be confirmed, this waits, too.
        """
        self._to_be_leveled = self.unsettled
        if self._to_be_leveled:
            return
        version, config, parks = self.version, self.values, self.parks()
        self._park(parks, now_ms)
        self.pages.clear()
        behind = [
            slot for slot in self._slots.values()
            if (shard := slot.shard) is not None
            and (shard.config_version != version or (newcomer in (None, shard) and shard.config != config))
        ]  # fmt: skip
        if not behind:
            return
        whole = put_whole(version, config)
        for put in whole:
            self.pages += ((slot, put) for slot in behind)
        if len(whole) == 1:
            self._send_page(now_ms)

    def begin_turn(self, now_ms: int) -> None:
        """Send the next page to all shards that lack it."""
        self.page_read = False
        if self._to_be_leveled:
            self.level(now_ms)
        if self.pages:
            self._send_page(now_ms)

    def _send_page(self, now_ms: int) -> None:
        pages = self.pages
        page = pages[0][1].page if pages else None
        while pages and pages[0][1].page == page:
            self._put(*pages.popleft(), now_ms)

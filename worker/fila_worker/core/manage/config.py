"""Changes of the runtime config: check, apply (a large config in pages), list and undo them."""

from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import (
    ConfigChange,
    ConfigEdit,
    ConfigHistory,
    ConfigValues,
    ListConfig,
    ListConfigHistory,
    PutConfig,
    SetConfig,
    UndoConfig,
)
from fila_proto_zmq.errors import InvalidArgumentError, InvalidConfigError
from fila_proto_zmq.events import ConfigDeleted, ConfigSet, TemplateDeleted, TemplatePut
from fila_proto_zmq.limits import CONFIG_EDITS_LISTED_MAX
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.runtime_config import Changes

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.runtime_config import Draft
    from fila_worker.core.model.state import State

KEYS_AT_ONCE: Final = 12
"""Keys with sizes that are added up for one unit of effort."""

PAGE_COST: Final = 5
"""Effort to write a key of a page, and to find out what it limits."""

COPIED_AT_ONCE: Final = 20
"""Keys that are copied for one unit of effort."""

LISTED_AT_ONCE: Final = 400
"""Keys that are examined or shown in one step of a list."""

SHOW_COST: Final = 3
"""Effort to show a key: its value may be joined from two stored keys."""

EDIT_COST: Final = 5
"""Effort to read a remembered change."""

PAGES_WAIT_MS: Final = 5000
"""How long to wait for the next page of a config. Pages come one right after the other, unless the connection was lost."""


def set_config(state: "State", command: SetConfig, now_ms: int) -> ConfigChange:
    """Check a change, make it durable, number it and return it; :class:`InvalidConfigError` leaves everything as it was."""
    changes = runtime_config.changes_for(command.key, command.value, state.runtime.values)
    change = make_change(state, command.key, changes, command.by, now_ms)
    if changes:
        state.notes.append((ConfigDeleted if command.value is None else ConfigSet)(command.key, change.version))
    return change


def make_change(state: "State", key: str, changes: Changes, by: str, now_ms: int) -> ConfigChange:
    """Make a checked change of a key durable, number, remember and return it. ``by``: the name of the asking API key."""
    runtime = state.runtime
    state.jobs.charge(1 + len(runtime.values) // KEYS_AT_ONCE)
    old = runtime_config.read(key, runtime.values)
    if changes:
        put_config(state, PutConfig(runtime.version + 1, dict(changes)), now_ms)
        new = runtime_config.read(key, runtime.values)
        runtime.edits.add(ConfigEdit(runtime.version, now_ms, by, key, old, new), state.batch)
    return ConfigChange(runtime.version, dict(changes), old is not None)


def undo_config(state: "State", command: UndoConfig, now_ms: int) -> ConfigChange:
    """Restore the value before a remembered change. Raise :class:`InvalidConfigError` if that is not possible."""
    state.settle_writes()
    edit = state.runtime.edits.find(command.version, state.store)
    if edit is None:
        raise InvalidConfigError(
            f"version {command.version} of the runtime config is not remembered: `fila-cluster config history` shows which "
            "are"
        )
    if not command.force and runtime_config.read(edit.key, state.runtime.values) != edit.new:
        raise InvalidConfigError(
            f"{edit.key!r} was changed again after version {edit.version}: take the later changes back first "
            f"(`fila-cluster config history {edit.key}`), or use --force to set the value from before version {edit.version}"
        )
    if edit.key.startswith(runtime_config.PARTITIONED):
        raise InvalidConfigError(
            f"version {edit.version} created, changed or deleted queue {edit.key[len(runtime_config.PARTITIONED) :]!r}: use the "
            "commands of queues"
        )
    if runtime_config.is_template(edit.key):
        pattern = edit.key[len(runtime_config.TEMPLATE) :]
        changes = runtime_config.template_changes_for(pattern, edit.old, state.runtime.values)
        change = make_change(state, edit.key, changes, command.by, now_ms)
        note_template(state, pattern, edit.old is None, change)
        return change
    return set_config(state, SetConfig(edit.key, edit.old, command.by), now_ms)


def note_template(state: "State", pattern: str, deleted: bool, change: ConfigChange) -> None:
    """Note for the log that a template was put or deleted."""
    if change.changes:
        state.notes.append((TemplateDeleted if deleted else TemplatePut)(pattern, change.version))


def put_config(state: "State", put: PutConfig, now_ms: int) -> None:
    """Apply a checked change. A change older than the config here has no effect.

    If the change before it is missing, it has no effect, either: this shard registers, and gets the whole config. The same
    holds for a change of the same version, unless it is ``whole`` and differs: then one of the two comes from a restored
    copy, and the router has decided which one is valid.
    """
    runtime = state.runtime
    if put.page or put.more:
        _take_page(state, put, now_ms)
        return
    if put.version < runtime.version or (put.version == runtime.version and (not put.whole or put.changes == runtime.values)):
        return
    if not put.whole and not put.changes:
        return
    if not put.whole and put.version > runtime.version + 1:
        state.to_be_registered = True
        return
    changes = _differing(runtime.values, put.changes) if put.whole else put.changes
    runtime.change(put.version, changes, state.batch)
    state.to_be_synced = True
    state.wake(state.token_client.limit(runtime_config.buckets_of(changes), runtime.limits, now_ms), now_ms)


def _differing(values: dict[str, str], whole: "Changes") -> "Changes":
    """Return the changes that turn ``values`` into the config ``whole``."""
    gone: Changes = {key: None for key in values if key not in whole}
    return {**gone, **{key: value for key, value in whole.items() if values.get(key) != value}}


# --- in pages ----------------------------------------------------------------------------------------------------------


def _take_page(state: "State", put: PutConfig, now_ms: int) -> None:
    """Add a page to the draft of a whole config.

    The config applies with its last page, and never if a page is missing. Several routers may send pages at the same time,
    each in order: a page out of order has no effect, because the next one may come from another router.
    """
    runtime = state.runtime
    draft = runtime.draft
    if _is_repeated(draft, put):
        return
    if put.page == 0 and put.version >= max(runtime.version, 0 if draft is None else draft.version):
        runtime.begin(put.version, state.batch, now_ms)
        state.token_client.hold(held=True)
    draft = runtime.draft
    if draft is None or (draft.version, draft.pages) != (put.version, put.page):
        return
    state.jobs.charge(PAGE_COST * len(put.changes))
    runtime.add(put.changes, state.batch)
    draft.heard_ms = now_ms
    runtime.timer.by(now_ms + PAGES_WAIT_MS)
    if not put.more:
        if draft.version > runtime.version or draft.values != runtime.values:
            runtime.hold(state.batch)
            state.to_be_synced = True
            state.token_client.replace(runtime.limits)
        drop_draft(state)


def _is_repeated(draft: "Draft | None", put: PutConfig) -> bool:
    """Return whether another router has sent this page before."""
    if draft is None or draft.version != put.version or put.page >= draft.pages:
        return False
    return all(draft.values.get(key) == value for key, value in put.changes.items())


def drop_draft(state: "State") -> None:
    """Drop the draft: the config before it stays in force."""
    state.runtime.draft = None
    state.token_client.hold(held=False)


# --- lists -------------------------------------------------------------------------------------------------------------


def list_config(state: "State", call: "ClientCall", command: ListConfig) -> "Work":
    """Return all keys that start with a prefix, as they are when the list begins."""
    values = state.runtime.values
    if len(values) > LISTED_AT_ONCE:
        values = dict(values)
        yield len(values) // COPIED_AT_ONCE
    shown: dict[str, str] = {}
    for piece in runtime_config.selecting(command.prefix, values, LISTED_AT_ONCE):
        shown.update(piece)
        yield (SHOW_COST * len(piece) or LISTED_AT_ONCE) if len(values) > LISTED_AT_ONCE else 1
    return ConfigValues(shown)


def list_edits(state: "State", call: "ClientCall", command: ListConfigHistory) -> "Work":
    """Return a page of the changes that this shard remembers, the latest first."""
    if not 1 <= command.limit <= CONFIG_EDITS_LISTED_MAX:
        raise InvalidArgumentError(f"limit of {command.limit} changes: use 1 to {CONFIG_EDITS_LISTED_MAX}")
    state.settle_writes()
    return _list_edits(state, command)


def _list_edits(state: "State", command: ListConfigHistory) -> "Work":
    edits, limits = state.runtime.edits, state.settings.limits
    found: list[ConfigEdit] = []
    size = 0
    remembered = iter(list(edits.versions(command.before)))
    while versions := list(islice(remembered, limits.config_edits_at_once)):
        for edit in edits.read(state.store, versions):
            if command.key is not None and not runtime_config.share_values(edit.key, command.key):
                continue
            if len(found) >= command.limit or size >= limits.config_edits_page_bytes_max:
                return ConfigHistory(found, True)
            found.append(edit)
            size += len(edit.key) + len(edit.old or "") + len(edit.new or "")
        yield EDIT_COST * len(versions)
    return ConfigHistory(found)


class ConfigCopy(Component):
    """This shard's copy of the runtime config, and the parks that are kept with it."""

    verbs: ClassVar = {ListConfig: list_config, ListConfigHistory: list_edits}

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.runtime.timer)

    def recover(self, now_ms: int) -> Steps:
        """Read the config, before the components that depend on it."""
        state = self.state
        at_once = state.settings.limits.recovery_records_max
        parks = yield from state.runtime.recover(state.store, at_once)
        state.park(parks, now_ms)
        for throttle_key in parks.keys() - state.token_client.parks.keys():
            state.runtime.forget_park(throttle_key, state.batch)  # its time came meanwhile
        yield from state.token_client.recover(state.runtime.limits, at_once, now_ms)

    def tick(self, now_ms: int) -> int | None:
        """Drop a config if its next page does not come. The router sees what is missing when this shard registers again."""
        draft = self.state.runtime.draft
        if draft is None:
            return None
        if now_ms - draft.heard_ms < PAGES_WAIT_MS:
            return draft.heard_ms + PAGES_WAIT_MS
        drop_draft(self.state)
        self.state.to_be_registered = True
        return None

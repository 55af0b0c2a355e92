"""Queue templates: the options of queues that the first enqueue creates.

Templates are keys of the runtime config (:mod:`fila_proto_zmq.templates`), so each shard has all of them before the client that put one is
answered. They are looked at only when an enqueue names a queue that does not exist. A queue that was made by one is like any other: later
changes of the template do not change it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import DeleteTemplate, PutTemplate
from fila_proto_zmq.errors import InvalidArgumentError, LuaCompilationError, OverloadedError
from fila_proto_zmq.names import check_pattern, is_dead_letter
from fila_proto_zmq.templates import Match, encode_options
from fila_worker.core.enqueue import quotas
from fila_worker.core.manage.config import make_change, note_template
from fila_worker.core.manage.dead_letter_targets import appointed, ask_for_appointment
from fila_worker.core.manage.queue_commands import compiled, make_queue
from fila_worker.core.manage.queue_options import check_options

if TYPE_CHECKING:
    from fila_proto_zmq.commands import ConfigChange, Enqueue
    from fila_worker.core.effects import Call
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

MAKE_COST: Final = 50
"""Effort to make a queue with its dead letter queue. The time to compile hooks comes on top."""

COMPILE_COST: Final = 500


def put_template(state: "State", command: PutTemplate, now_ms: int) -> "ConfigChange":
    """Check a template, make it durable, number the change and return it, on shard 0 only."""
    pattern, options = check_pattern(command.pattern), command.options
    check_options(pattern, options)
    hooks = compiled(state, pattern, options)
    if hooks is not None:
        hooks.hooks.close()
        state.jobs.charge(COMPILE_COST)
    changes = runtime_config.template_changes_for(pattern, encode_options(options), state.runtime.values)
    return _change(state, pattern, changes, command.by, now_ms, deleted=False)


def delete_template(state: "State", command: DeleteTemplate, now_ms: int) -> "ConfigChange":
    """Delete a template, if there is one, on shard 0 only."""
    changes = runtime_config.template_changes_for(command.pattern, None, state.runtime.values)
    return _change(state, command.pattern, changes, command.by, now_ms, deleted=True)


def _change(
    state: "State", pattern: str, changes: dict[str, str | None], by: str, now_ms: int, *, deleted: bool
) -> "ConfigChange":
    change = make_change(state, runtime_config.TEMPLATE + pattern, changes, by, now_ms)
    note_template(state, pattern, deleted, change)
    return change


def queue_by_template(state: "State", call: "Call", command: "Enqueue") -> "Queue | None":
    """Make and return the queue that an enqueue names and that does not exist.

    Raise :class:`QueueNotFoundError` if its name matches no template. None: another shard is asked first whether the queue for its dead
    letters exists; the enqueue goes on with the answer.
    """
    name = call.queue
    template = _template(state, name)
    if template is None:
        return state.queues.find(name)
    with _explained(name, template):
        check_options(name, template.options)
        if not appointed(state, name, template.options.dead_letter):
            ask_for_appointment(state, call, command, template.options.dead_letter)
            return None
        return _make(state, name, template, call.now_ms)


def queue_for_broker(state: "State", name: str, now_ms: int) -> "Queue":
    """Return the queue for a message of the broker itself, made by a template if need be. Raise the errors of :func:`queue_by_template`.

    No other shard is asked: a template whose dead letters go to a queue elsewhere makes none here.
    """
    queue = state.queues.get(name)
    template = _template(state, name) if queue is None else None
    if template is None:
        return queue or state.queues.find(name)
    with _explained(name, template):
        check_options(name, template.options)
        if not appointed(state, name, target := template.options.dead_letter):
            raise InvalidArgumentError(f"its dead letter queue {target!r} is on another shard: create {name!r} first")
        return _make(state, name, template, now_ms)


def _template(state: "State", name: str) -> Match | None:
    """Return the template of a queue that does not exist, if there is one and room for a queue."""
    template = None if is_dead_letter(name) else state.runtime.templates.find(name)
    if template is None:
        return None
    if state.disk_is_full:
        raise quotas.disk_full(state)
    if len(state.queues.by_id) >= state.settings.max_queues_per_shard:
        raise _too_many(state, name, template.pattern)
    return template


@contextmanager
def _explained(name: str, template: Match) -> Iterator[None]:
    try:
        yield
    except (InvalidArgumentError, LuaCompilationError) as error:
        raise type(error)(f"queue {name!r} can't be made by the template {template.pattern!r}: {error.message}") from error


def _make(state: "State", name: str, template: Match, now_ms: int) -> "Queue":
    """Make a queue. It is as durable as the messages that it is made for: a power cut that it does not survive takes these, too."""
    synced = state.to_be_synced
    queue = make_queue(state, name, template.options, now_ms, template.pattern)
    state.to_be_synced = synced
    state.jobs.charge(MAKE_COST if queue.hooks is None else COMPILE_COST)
    return queue


def _too_many(state: "State", name: str, pattern: str) -> OverloadedError:
    count = len(state.queues.by_id)
    return OverloadedError(
        f"there is no queue {name!r}, and the template {pattern!r} makes none: shard {state.index} has {count} queues, dead letter queues "
        f"included, and may have {state.settings.max_queues_per_shard} ([limits] max_queues_per_shard); delete some, or give the template "
        "an idle_expiry",
        details={"queue": name, "template": pattern, "queues": count},
    )

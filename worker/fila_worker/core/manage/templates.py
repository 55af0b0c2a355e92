"""Queue templates: the options of queues that the first enqueue creates.

Templates are keys of the runtime config (:mod:`fila_proto_zmq.templates`), so each shard has all of them before the client
that put one is answered. They are read only when an enqueue names a missing queue. A queue made by one is like any other:
later changes of the template do not change it.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import DeleteTemplate, PutTemplate
from fila_proto_zmq.errors import OverloadedError, PartitionedError, QueueNotFoundError
from fila_proto_zmq.names import check_pattern, is_dead_letter, whole_queue
from fila_proto_zmq.templates import encode_options
from fila_worker.core.enqueue import quotas
from fila_worker.core.manage.config import make_change, note_template
from fila_worker.core.manage.queue_commands import check_options, compiled, make_queue

if TYPE_CHECKING:
    from fila_proto_zmq.commands import ConfigChange
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


def queue_by_template(state: "State", name: str, now_ms: int) -> "Queue":
    """Make and return a missing queue. Raise :class:`QueueNotFoundError` if its name matches no template.

    It is as durable as the messages that it is made for: both survive a power cut or neither. If the target of its dead
    letters is missing, they go to the queue's own ``.dlq``.
    """
    whole = whole_queue(name)
    template = None if is_dead_letter(name) else state.runtime.templates.find(whole)
    if template is None:
        return state.queues.find(name)
    partitions = template.options.partitions
    if partitions not in {None, 1}:
        raise PartitionedError(
            f"queue {whole!r} is made by the template {template.pattern!r} with {partitions or 'as many'} partitions"
            f"{'' if partitions else ' as there are shards'}, which this client does not know: upgrade it",
            details={"template": template.pattern},
        )
    if whole != name:
        return state.queues.find(name)  # no such partition: the whole queue has one now, if it is made again
    if state.disk_is_full:
        raise quotas.disk_full(state)
    if len(state.queues.by_id) >= state.settings.max_queues_per_shard:
        raise _too_many(state, name, template.pattern)
    options = template.options
    if options.dead_letter == name:  # it takes those of the others
        options = msgspec.structs.replace(options, dead_letter=None)
    synced = state.to_be_synced
    queue = make_queue(state, name, options, now_ms, template.pattern)
    state.to_be_synced = synced
    state.jobs.charge(MAKE_COST if queue.hooks is None else COMPILE_COST)
    return queue


def with_hint(state: "State", name: str, error: QueueNotFoundError) -> QueueNotFoundError:
    """Return the error for a queue that does not exist, and say so if its first message would make it."""
    gone = not (is_dead_letter(name) or name in state.queues)
    name = whole_queue(name)
    template = state.runtime.templates.find(name) if gone else None
    if template is None:
        return error
    return QueueNotFoundError(
        f"no queue {name!r}: its first message makes it, by the template {template.pattern!r}; enqueue one, or "
        "create_queue()",
        details={"queue": name, "template": template.pattern},
    )


def _too_many(state: "State", name: str, pattern: str) -> OverloadedError:
    count = len(state.queues.by_id)
    return OverloadedError(
        f"there is no queue {name!r}, and the template {pattern!r} makes none: shard {state.index} has {count} queues, dead "
        f"letter queues included, and may have {state.settings.max_queues_per_shard} ([limits] max_queues_per_shard); "
        "delete some, or give the template an idle_expiry",
        details={"queue": name, "template": pattern, "queues": count},
    )

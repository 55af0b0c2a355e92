"""Tenants of tasks: ``fair(app, key=…)`` calls a function of yours for each task that the app sends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fila_cluster.celery.envelope import COST, FAIRNESS_KEY, THROTTLE_KEYS, WEIGHT


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task on its way to the broker. ``headers`` has the caller's own; the four of this library win over the function."""

    name: str
    id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """The scheduling options of a task's message; None: the broker's default."""

    key: str | None = None
    weight: int | None = None
    throttle_keys: Sequence[str] | None = None
    cost: float | None = None


def fair(app: Any, key: Callable[[SentTask], str | Share | None]) -> None:
    """Set ``key``, which returns the fairness key of each task that ``app`` sends, a :class:`Share` with more, or None.

    Call it once for an app, in each process that sends tasks, before or after its configuration. Headers that a caller has
    set are not changed.
    """
    amqp = app.amqp
    if "send_task_message" in vars(amqp):  # made already, at the first task or by another call
        amqp.send_task_message = _fairly(amqp.send_task_message, key)
        return
    # Celery makes it at the first task, and it keeps the configuration of that moment: to ask for it here would be too early.
    make = amqp._create_task_sender
    amqp._create_task_sender = lambda: _fairly(make(), key)


def _fairly(send: Callable[..., Any], key: Callable[[SentTask], str | Share | None]) -> Callable[..., Any]:
    def send_fairly(producer: Any, name: str, message: Any, *arguments: Any, **options: Any) -> Any:
        _mark(message.headers, key(_sent(name, message, options)))
        return send(producer, name, message, *arguments, **options)

    return send_fairly


def _mark(headers: dict[str, Any], found: str | Share | None) -> None:
    if found is None:
        return
    share = found if isinstance(found, Share) else Share(str(found))
    keys = None if share.throttle_keys is None else list(share.throttle_keys)
    for header, value in ((FAIRNESS_KEY, share.key), (WEIGHT, share.weight), (THROTTLE_KEYS, keys), (COST, share.cost)):
        if value is not None:
            headers.setdefault(header, value)


def _sent(name: str, message: Any, options: Mapping[str, Any]) -> SentTask:
    queue = options.get("queue") or options.get("routing_key") or ""
    body = message.body
    if isinstance(body, Mapping):  # the first version of Celery's protocol
        args, kwargs, task_id = body.get("args", ()), body.get("kwargs", {}), body.get("id", "")
    else:
        args, kwargs, task_id = body[0], body[1], message.headers.get("id", "")
    headers = {**message.headers, **(options.get("headers") or {})}  # Celery joins them later
    return SentTask(name, task_id, args, kwargs, str(getattr(queue, "name", queue)), headers)

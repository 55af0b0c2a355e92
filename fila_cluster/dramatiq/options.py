"""The scheduling of a message: by its options, its actor's options and the broker's functions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dramatiq import Message

from fila_cluster.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dramatiq import Actor

    from fila_cluster.dramatiq.broker import FilaBroker

Rule = Callable[["Message[Any]"], Any]
"""Returns an option's value for a message; None leaves it out."""

KEY: Final = "fila_fairness_key"
KEPT: Final = {
    KEY: "fairness_key",
    "fila_weight": "weight",
    "fila_throttle_keys": "throttle_keys",
    "fila_cost": "cost",
    "fila_priority": "priority",
}
"""Options of messages and actors, with their arguments of ``Client.enqueue``. A retried message keeps them."""
ONCE: Final = {"fila_dedup_id": "dedup_id"}
"""Options of messages for one enqueue: a retry that had them would be taken for a duplicate."""
RABBITMQ_PRIORITY: Final = "broker_priority"
"""The priority of dramatiq's RabbitMQ broker. There higher is first."""
HEADERS: Final = "fila_headers"
"""An option of messages and actors: more headers, for hooks."""

ACTOR_OPTIONS: Final = frozenset({*KEPT, RABBITMQ_PRIORITY, HEADERS})
"""The options that an actor may be declared with."""
MESSAGE_OPTIONS: Final = ACTOR_OPTIONS | ONCE.keys()
"""The options that a message may be sent with."""
PREFIX: Final = "fila_"
"""Of this broker's options. Others may be those of any middleware."""


def fair(
    broker: "FilaBroker",
    *,
    key: Rule | None = None,
    weight: Rule | None = None,
    throttle_keys: Rule | None = None,
    cost: Rule | None = None,
) -> None:
    """Set functions that schedule all messages that ``broker`` enqueues from now on.

    ``key`` returns its fairness key, ``weight`` the weight of that key, ``throttle_keys`` the token buckets that its delivery
    draws on, ``cost`` how many tokens. None, from a function or for one, leaves it to the actor's options. Options of
    ``send_with_options`` win over these functions. The enqueue raises their errors.
    """
    rules = {KEY: key, "fila_weight": weight, "fila_throttle_keys": throttle_keys, "fila_cost": cost}
    broker.rules.update({name: rule for name, rule in rules.items() if rule is not None})


def ruled(message: "Message[Any]", rules: Mapping[str, Rule]) -> "Message[Any]":
    """Return the message with the options by the rules. It keeps them for retries, which may lack the rules."""
    added = {
        name: _written(name, value)
        for name, rule in rules.items()
        if name not in message.options and (value := rule(message)) is not None
    }
    return message.copy(options=added) if added else message


def check_options(message: "Message[Any]") -> None:
    """Refuse an unknown option: Dramatiq does so for actors only."""
    for name in message.options:
        if name.startswith(PREFIX) and name not in MESSAGE_OPTIONS:
            known = ", ".join(sorted(each for each in MESSAGE_OPTIONS if each.startswith(PREFIX)))
            raise InvalidArgumentError(
                f"a message of actor {message.actor_name!r} has the option {name!r}: there are {known}"
            )


def without_once(message: "Message[Any]") -> "Message[Any]":
    """Return the message as it is stored: without options that are for this enqueue only."""
    if not any(name in message.options for name in ONCE):
        return message
    return replace(message, options={name: value for name, value in message.options.items() if name not in ONCE})


def arguments(message: "Message[Any]", actor: "Actor[..., Any] | None") -> dict[str, Any]:
    """Return the arguments of ``Client.enqueue`` besides queue, payload and delay, the actor's ``priority`` among them: in
    both systems lower is first."""
    options, defaults = message.options, {} if actor is None else actor.options
    found: dict[str, Any] = {"priority": 0 if actor is None else actor.priority}
    rabbitmq = options.get(RABBITMQ_PRIORITY, defaults.get(RABBITMQ_PRIORITY))
    if rabbitmq is not None:
        found["priority"] = -rabbitmq
    for name, argument in KEPT.items():
        value = options.get(name, defaults.get(name))
        if value is not None:
            found[argument] = _written(name, value)
    for name, argument in ONCE.items():
        if options.get(name) is not None:
            found[argument] = options[name]
    found["headers"] = {
        **(defaults.get(HEADERS) or {}),
        **(options.get(HEADERS) or {}),
        "dramatiq-actor": message.actor_name,
        "dramatiq-message-id": message.message_id,
    }
    return found


def _written(name: str, value: Any) -> Any:
    """Return an option in its form in a message. A tenant is often named by its primary key, a number or a UUID."""
    return str(value) if name == KEY and isinstance(value, (int, UUID)) else value

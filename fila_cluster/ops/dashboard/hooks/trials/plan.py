"""The question to a trial and its answer. Plain data: it travels between two processes as msgpack."""

from typing import Any, Final

import msgspec

from fila_proto_zmq.commands.structs import Struct

TIMEOUT_MS: Final = 10
MEMORY_LIMIT_BYTES: Final = 1024 * 1024
"""The limit of brokers without a setting."""


class TrialMessage(Struct):
    """A message as it is now, and as it is after a failed attempt. ``attempts`` counts that one."""

    id: str
    headers: dict[str, str]
    payload_bytes: int
    fairness_key: str = "default"
    weight: int = 1
    throttle_keys: list[str] = msgspec.field(default_factory=list)
    priority: int = 0
    cost: float = 1.0
    attempts: int = 1
    error: str = ""


class Plan(Struct):
    """The scripts of a queue, their limits, and the messages to try them on. None: there is no such script."""

    queue: str
    on_enqueue: str | None
    on_failure: str | None
    timeout_ms: int
    memory_limit_bytes: int
    config: dict[str, str]
    """The runtime config, as it is stored."""
    messages: list[TrialMessage]
    costs: bool = False
    """Whether to measure the cost of a run on the first message."""


class Verdict(Struct):
    """The decision of a hook for a message: the fields that it set, named as in scripts; or why it failed."""

    decided: dict[str, Any]
    failure: str = ""


class HookReport(Struct):
    """The results of one hook. There are fewer verdicts than messages if the time was up."""

    verdicts: list[Verdict]
    took_us: float
    """For all of them together."""
    cost_us: float = 0.0
    """Of one run in a batch, as a broker runs it, if that was measured."""
    instructions: int = 0


class TrialReport(Struct):
    """The results of a plan. ``refused``: why the scripts do not compile, and on which line; the rest is empty then."""

    refused: str
    hooks: dict[str, HookReport]

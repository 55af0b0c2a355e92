"""``fila-cluster hook …``."""

from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.parameters import SCRIPT
from fila_cluster.cli.shared.tables import table

if TYPE_CHECKING:
    from rich.table import Table

    from fila_worker.core.hooks import EnqueueDecision, FailureDecision
    from fila_worker.lua.trial import TrialOutcome


@click.group()
def hook_command() -> None:
    """Work on Lua hooks. No broker is needed."""


LEFT_OUT = {
    "fairness_key": "as enqueued; “default” if that says nothing",
    "weight": "as enqueued; else the key's last",
    "throttle_keys": "as enqueued; else none",
    "priority": "as enqueued; else 0",
    "cost": "as enqueued; else 1",
    "delay_ms": "as enqueued; else 0",
}
"""The value of a field that a script leaves out."""


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if bad := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"{bad[0]!r}: write it as name=value", ctx, param)
    return dict(value.split("=", 1) for value in values)


@hook_command.command("test", short_help="Show what a script decides, and what it costs.")
@click.argument("script", type=SCRIPT)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="A header of the message; may be repeated.",
)
@click.option("--payload-size", type=click.IntRange(0), default=0, metavar="N", help="Bytes of its payload. Default: 0.")
@click.option("--queue", default="test", metavar="NAME", help="The queue's name, as msg.queue. Default: test.")
@click.option(
    "--config",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Runtime config, as fila.get sees it; may be repeated.",
)
@click.option("--error", default="", metavar="TEXT", help="For on_failure: what the nack said.")
@click.option(
    "--attempts", type=click.IntRange(1), default=1, metavar="N", help="For on_failure: failed so often. Default: 1."
)
@click.option("--key", default="default", metavar="K", help="For on_failure: the message's fairness key. Default: default.")
@click.pass_obj
def test(
    invocation: Invocation,
    script: str,
    headers: dict[str, str],
    payload_size: int,
    queue: str,
    config: dict[str, str],
    error: str,
    attempts: int,
    key: str,
) -> None:
    """Run the hooks that SCRIPT defines (a file, or the Lua text itself) on one message.

    Shows what they decide, what holds for what they leave out, and what they cost.
    """
    import msgspec  # noqa: PLC0415 # quick --help

    from fila_cluster.client.checks import encodable  # noqa: PLC0415
    from fila_worker.core.hooks import FailedAttempt  # noqa: PLC0415
    from fila_worker.lua.trial import SampleMessage, try_hooks  # noqa: PLC0415

    for text in (script, queue, error, key, *headers, *headers.values(), *config, *config.values()):
        encodable("the text", text)
    failure = FailedAttempt(msgspec.msgpack.encode(headers), "00000000-0000-7000-8000-000000000001", attempts, error, key)
    outcomes = try_hooks(script, SampleMessage(headers, payload_size, failure), queue=queue, config=config)
    _check(outcomes)
    decided = {hook: _plain(outcome) for hook, outcome in outcomes.items()}
    shown = [part for hook, outcome in decided.items() for part in ("", *_shown(hook, outcome))]
    invocation.show(decided, *shown[1:])


def _check(outcomes: "dict[str, TrialOutcome]") -> None:
    from fila_worker.core.hooks import HookFailed  # noqa: PLC0415

    for outcome in outcomes.values():
        if isinstance(outcome.decision, HookFailed):
            raise click.ClickException(" ".join(outcome.decision.text.split("\n")))


def _plain(outcome: "TrialOutcome") -> dict[str, Any]:
    from fila_worker.lua.trial import TIMEOUT_MS  # noqa: PLC0415

    return {
        "decision": _decision(outcome.decision),  # type: ignore[arg-type] # failures were reported
        "microseconds": round(outcome.microseconds, 2),
        "instructions": outcome.instructions,
        "percent_of_time_limit": round(outcome.microseconds / TIMEOUT_MS / 10, 4),
    }


def _decision(decision: "EnqueueDecision | FailureDecision") -> dict[str, Any]:
    """Return a decision with the field names of scripts; None is a field that was left out, or was invalid."""
    from fila_worker.core.hooks import FailureDecision  # noqa: PLC0415

    if isinstance(decision, FailureDecision):
        return {"action": "dlq" if decision.dead_letter else "retry", "delay_ms": decision.delay_ms}
    fields = decision._asdict()
    milli = fields.pop("cost_milli")
    fields["cost"] = None if milli is None else milli / 1000
    return {name: fields[name] for name in LEFT_OUT}


def _shown(hook: str, decided: dict[str, Any]) -> "list[str | Table]":
    rows = table(hook, "", "")
    for name, value in decided["decision"].items():
        text = ", ".join(value) or "none" if isinstance(value, list) else str(value)
        rows.add_row(name, *(("–", LEFT_OUT[name]) if value is None else (text, "")))
    cost = f"{decided['microseconds']:.1f} µs, {decided['instructions']:,} instructions"
    return [rows, f"{cost}, {decided['percent_of_time_limit']:.3g} % of the time limit"]

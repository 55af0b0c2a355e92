"""The life of a message, from the table in the worker's core."""

from collections.abc import Iterator
from itertools import groupby

from fila_worker.core.lifecycle import LIFE, Attempts, DeadLetterReason, MessagePlace, Transition


def lifecycle() -> str:
    """Return a drawing and a table."""
    return "\n".join(["```mermaid", *_drawing(), "```", "", *_table()])


def _drawing() -> Iterator[str]:
    names = {place: place.name.title().replace("_", "") for place in MessagePlace} | {
        MessagePlace.NOWHERE: "[*]",
        MessagePlace.GONE: "[*]",
    }
    yield "stateDiagram-v2"
    yield f"    {names[MessagePlace.DEAD_LETTER]}: {MessagePlace.DEAD_LETTER}"
    edges = sorted(LIFE, key=lambda step: (list(MessagePlace).index(step.before), list(MessagePlace).index(step.after)))
    for (before, after), steps in groupby(edges, key=lambda step: (step.before, step.after)):
        labels = [_label(step) for step in steps]
        if after is MessagePlace.DEAD_LETTER:
            reasons = {reason for step in LIFE if step.before is before for reason in step.unless}
            labels += [f"or else: {', '.join(each for each in DeadLetterReason if each in reasons)}"] if reasons else []
        yield f"    {names[before]} --> {names[after]}: {'<br>'.join(labels)}"


def _label(step: Transition) -> str:
    attempts = {Attempts.SAME: "", Attempts.ONE_MORE: " (attempts + 1)", Attempts.ZERO: " (attempts = 0)"}
    return step.event + ("" if step.before is MessagePlace.NOWHERE else attempts[step.attempts])


def _table() -> Iterator[str]:
    yield "| a message that is | and then | is | attempts | but a dead letter for the first of these reasons that holds |"
    yield "|---|---|---|---|---|"
    for step in LIFE:
        reasons = ", ".join(f"`{reason}`" for reason in step.unless) or "–"
        yield f"| {step.before} | {step.event} | {step.after} | {step.attempts.value} | {reasons} |"

"""The reference of the client: methods by task, options of messages and queues, classes of results, errors."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import fila_cluster
from fila_cluster import (
    Batch,
    BatchConsumer,
    Client,
    Consumer,
    Delivery,
    Explanation,
    Message,
    MessageBatch,
    MessageView,
    Producer,
    Reason,
    Request,
    Schedule,
)
from fila_cluster.client.calls.queues import QueueOptions
from fila_proto_zmq.commands import MESSAGE_OPTIONS, QUEUE_OPTIONS, Option
from fila_proto_zmq.errors import BY_CODE, FilaError
from parts.markdown import codes, field_docs, prose, table

TASKS: dict[str, dict[type, str]] = {
    "connect": {Client: "__init__ endpoint closed close"},
    "send": {Client: "enqueue enqueue_many producer", Producer: "send flush close"},
    "receive": {
        Client: "receive receive_any consume consume_batches",
        Consumer: "take close",
        BatchConsumer: "close",
        Delivery: "id queue headers payload text json fairness_key weight throttle_keys priority cost actual_cost attempts max_attempts "
        "error metadata enqueued_at leased_at lease_expires_at reason source_queue dead_lettered_at",
    },
    "settle": {
        Delivery: "ack nack retry fail defer extend",
        Batch: "ack nack settle",
        Client: "ack nack ack_soon give_back",
    },
    "callbacks": {Client: "batch", MessageBatch: "id name enqueue enqueue_many seal"},
    "queues": {
        Client: "create_queue update_queue delete_queue pause resume list_queues active_queues queue_stats put_template "
        "get_template list_templates delete_template"
    },
    "backlog": {Client: "browse cancel purge_queue redrive move why", MessageView: "", Explanation: "", Reason: ""},
    "schedules": {Client: "put_schedule get_schedule list_schedules delete_schedule", Schedule: ""},
    "config": {Client: "set_config get_config list_config delete_config config_history undo_config"},
    "throttles": {Client: "set_throttle list_throttles delete_throttle"},
    "cluster": {Client: "cluster_status hosts audit connections close_connection"},
    "commands": {Client: "request", Request: ""},
}
"""The public names by task, in the order of the page; of a class without names here, all. :func:`results` has the other classes."""

_OPTIONS = {
    Message: "[options of a message](#options-of-a-message)",
    QueueOptions: "[options of a queue](#options-of-a-queue)",
}
_SECTION = re.compile(r"\n\n(Args|Raises):\n")
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def task(name: str) -> str:
    """Return the methods of a task, and the classes that belong to it."""
    introduced: set[type] = {Client, *(owner for other in list(TASKS)[: list(TASKS).index(name)] for owner in TASKS[other])}
    lines: list[str] = []
    for owner, names in TASKS[name].items():
        if owner not in introduced:
            lines += ["", f"### {owner.__name__}", "", *_text(owner.__doc__)]
        members = names.split() or _public(owner)
        if "__init__" in members:
            lines += _method(owner, members.pop(0))
        lines += _attributes(owner, [each for each in members if not _is_method(owner, each)])
        lines += [line for each in members if _is_method(owner, each) for line in _method(owner, each)]
    return _joined(lines)


PARTS: dict[str, Callable[[], str]] = {f"client: {name}": partial(task, name) for name in TASKS}


def message_options() -> str:
    """Return the table of the options of a message, after its fields that are no options."""
    given, meanings = inspect.signature(Message).parameters, field_docs(Message)
    rows = [
        (f"`{name}`", _type(given[name].annotation), "", "", meanings[name]) for name in given if name not in MESSAGE_OPTIONS
    ]
    return _options([*rows, *_rows(MESSAGE_OPTIONS, given)])


def queue_options() -> str:
    """Return the table of the options of a queue."""
    return _options(_rows(QUEUE_OPTIONS, inspect.signature(Client.create_queue).parameters))


def _options(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(table(["option", "type", "unit", "default", "meaning"], rows))


def _rows(options: Mapping[str, Option], given: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, ...]]:
    for name, option in options.items():
        unit = {"duration": "seconds", "size": "bytes"}.get(option.kind, "")
        yield f"`{name}`", _type(given[name].annotation), unit, option.default, option.help


def results() -> str:
    """Return the classes that only carry data, with their fields."""
    placed = {Message, *(owner for owners in TASKS.values() for owner in owners)}
    exported = [getattr(fila_cluster, name) for name in fila_cluster.__all__]
    lines: list[str] = []
    for owner in exported:
        if is_dataclass(owner) and isinstance(owner, type) and owner not in placed:
            lines += ["", f"### {owner.__name__}", "", *_text(owner.__doc__), *_attributes(owner, _public(owner))]
    return _joined(lines)


def errors() -> str:
    """Return the table of errors."""
    kinds = [kind for kind in BY_CODE.values() if kind is not FilaError]
    rows = ((f"`{kind.__name__}`", "yes" if kind.retryable else "no", prose(kind.__doc__)) for kind in kinds)
    return _joined([*_text(FilaError.__doc__), *table(["error", "retryable", "meaning"], rows)])


PARTS |= {
    "client: options of a message": message_options,
    "client: options of a queue": queue_options,
    "client: results": results,
    "client: errors": errors,
}


def _public(owner: type) -> list[str]:
    """Return the public names of a class: its fields in their order, then the others."""
    named = dict.fromkeys(name for kind in reversed(owner.__mro__) for name in inspect.get_annotations(kind))
    return [name for name in named | dict.fromkeys(dir(owner)) if not name.startswith("_") and name not in dir(tuple)]


def _is_method(owner: type, name: str) -> bool:
    return callable(getattr(owner, name, None))


def _method(owner: type, name: str) -> Iterator[str]:
    """Yield the section of a method."""
    function = getattr(owner, name)
    doc = inspect.cleandoc(function.__doc__ or "")
    text, *sections = _SECTION.split(doc)
    found = {
        title: {entry: prose(meaning) for entry, meaning in _ENTRY.findall(body)}
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    }
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    meanings = found.get("Args", {})
    if unknown := meanings.keys() - {each.name for each in given}:
        raise SystemExit(f"{owner.__name__}.{name} has no arguments {unknown}, which its docstring names")
    title = owner.__name__ if name == "__init__" else name if owner is Client else f"{owner.__name__}.{name}"
    yield from ("", f"### {title}", "", f"`{_signature(title, given, meanings, signature.return_annotation)}`", "")
    yield from _text(owner.__doc__ if name == "__init__" else text)
    rows = [
        (f"`{each.name}`", _type(each.annotation), _default(each), meanings[each.name])
        for each in given
        if each.name in meanings
    ]
    if rows:
        yield from table(["argument", "type", "default", "meaning"], rows)
    others = [each.name for each in given if each.name not in meanings]
    if others:
        yield from ("", f"`**options`: the {_options_of(owner, name, given, others)}.")
    for error, when in found.get("Raises", {}).items():
        yield from (("", "Raises:", "") if error == next(iter(found["Raises"])) else ())
        yield f"- `{error}`: {when}"


def _options_of(owner: type, name: str, given: list[inspect.Parameter], others: list[str]) -> str:
    """Return the link to the table that has the arguments which a docstring leaves out."""
    typed = str(next((each.annotation for each in given if each.kind is each.VAR_KEYWORD), ""))
    for kind, link in _OPTIONS.items():
        if kind.__name__ in typed or set(others) <= set(kind.__annotations__):
            return link
    if "Options" in typed:
        return _OPTIONS[Message]
    raise SystemExit(f"the docstring of {owner.__name__}.{name} says nothing of {codes(others)}")


def _signature(title: str, given: list[inspect.Parameter], meanings: dict[str, str], returned: Any) -> str:
    """Return a signature without types. Arguments that stand in a table of options are ``**options``."""
    shown: list[str] = []
    for each in given:
        if each.kind is each.KEYWORD_ONLY and each.name in meanings and "*" not in shown:
            shown.append("*")
        if each.name in meanings:
            shown.append(each.name if each.default is each.empty else f"{each.name}={_value(each)}")
    if any(each.name not in meanings for each in given):
        shown.append("**options")
    arrow = "" if returned in {inspect.Signature.empty, None} else f" -> {_annotation(returned)}"
    return f"{title}({', '.join(shown)}){arrow}"


def _attributes(owner: type, names: list[str]) -> Iterator[str]:
    """Yield a table of attributes, or a line if they need no words."""
    if not names:
        return
    words = {
        name: text for kind in reversed(owner.__mro__) if kind.__module__.startswith("fila_") for name, text in _words(kind)
    }
    types = {name: _type(kind) for each in reversed(owner.__mro__) for name, kind in _types(each)}
    yield ""
    if any(name in words for name in names):
        rows = ((f"`{name}`", types.get(name, ""), words.get(name, "")) for name in names)
        yield from table(["attribute", "type", "meaning"], rows)
    else:
        yield "Fields: " + ", ".join(f"`{name}` ({types[name]})" for name in names) + "."


def _words(kind: type) -> Iterator[tuple[str, str]]:
    yield from field_docs(kind).items()
    for name, each in vars(kind).items():
        if isinstance(each, property):
            yield name, prose(each.__doc__)


def _types(kind: type) -> Iterator[tuple[str, Any]]:
    yield from inspect.get_annotations(kind).items()
    for name, each in vars(kind).items():
        if isinstance(each, property):
            yield name, inspect.signature(each.fget).return_annotation if each.fget else ""


def _joined(lines: list[str]) -> str:
    """Return lines as text, with one empty line where there are several."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _text(doc: str | None) -> Iterator[str]:
    """Yield the paragraphs of a docstring."""
    for paragraph in inspect.cleandoc(doc or "").split("\n\n"):
        yield from (prose(paragraph), "")


def _default(each: inspect.Parameter) -> str:
    return "" if each.default is each.empty else f"`{_value(each)}`"


def _value(each: inspect.Parameter) -> str:
    return "..." if each.default is ... else repr(each.default)


def _type(annotation: Any) -> str:
    return f"`{_annotation(annotation)}`"


def _annotation(annotation: Any) -> str:
    """Return a type as its readers write it, without the modules of its parts."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("bytes | bytearray | memoryview", "bytes")
    if union := re.fullmatch(r"Union\[(.*), NoneType\]", text):  # of a literal and a class
        text = f"Optional[{union[1].replace(', Literal', ' | Literal')}]"
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)

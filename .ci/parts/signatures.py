"""The options of queues and messages in the client's signatures, which type checkers and editors read: made from the tables
of options.

A field of a ``TypedDict``, a parameter and an argument are written for each option, and the rest of a module stays as it is.
"""

import ast
import textwrap
from collections.abc import Iterator

from fila_proto_zmq.commands import MESSAGE_OPTIONS, QUEUE_OPTIONS, Option

MODULES = (
    "calls/queues.py",
    "message.py",
    "asynchronous/administration.py",
    "asynchronous/client.py",
    "asynchronous/producer.py",
)
"""The modules of the client that have such places."""
_QUEUE, _MESSAGE = list(QUEUE_OPTIONS.values()), list(MESSAGE_OPTIONS.values())
_CLASSES = {
    "QueueOptions": _QUEUE,
    "Message": _MESSAGE,
    "ScheduledOptions": [each for each in _MESSAGE if each.kind != "instant"],
}
_FUNCTIONS = {"create_queue": _QUEUE, "enqueue": _MESSAGE, "send": _MESSAGE}
_TYPES = {
    "duration": "float",
    "number": "float",
    "size": "int",
    "count": "int",
    "instant": "datetime",
    "texts": "Iterable[str]",
}


def with_options(source: str) -> str:
    """Return the text of a module with the options as the table has them, not formatted."""
    lines = source.splitlines()
    for first, last, made in sorted(_places(ast.parse(source)), reverse=True):
        lines[first - 1 : last] = made
    return "\n".join(lines) + "\n"


def _places(tree: ast.Module) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the first and the last line of each place, and its new lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (options := _CLASSES.get(node.name)):
            fields = [
                each for each in node.body if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) not in _OTHERS
            ]
            described = node.name != "ScheduledOptions"
            values = ["" if node.keywords else f" = {each.usual!r}" for each in options]
            yield (
                fields[0].lineno,
                _end(node.body[-1]),
                [
                    f"    {_typed(each)}{value}" + ("\n" + _wrapped(f'"""{each.meaning}"""', 4) if described else "")
                    for each, value in zip(options, values, strict=True)
                ],
            )
        elif isinstance(node, ast.AsyncFunctionDef) and (options := _FUNCTIONS.get(node.name)):
            yield from _places_of(node, options)


def _places_of(function: ast.AsyncFunctionDef, options: list[Option]) -> Iterator[tuple[int, int, list[str]]]:
    first = function.args.kwonlyargs[1 if function.args.kwonlyargs[0].arg in _OTHERS else 0]
    yield first.lineno, _end(function.args.kw_defaults[-1]), [f"        {_typed(each)} = {each.usual!r}," for each in options]
    names = ", ".join(each.name for each in options)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and ast.unparse(node.targets[0]) == "options":
            yield node.lineno + 1, _end(node) - 1, [f"            {names},"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "queues.QueueOptions":
            yield node.keywords[0].lineno, _end(node.keywords[-1]), [f"{each.name}={each.name}," for each in options]


_OTHERS = {"payload", "headers", "_", "queue"}
"""Fields and parameters that are not options."""


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 126, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False)


def _end(node: ast.AST | None) -> int:
    return getattr(node, "end_lineno", 0)


def _typed(option: Option) -> str:
    words = f"Literal{list(option.choices)}"
    if option.kind == "choice":
        kind = words
    elif option.kind == "count" and option.choices:
        kind = f"int | {words}"
    else:
        kind = _TYPES.get(option.kind, "str")
    is_optional = option.usual is None or option in _QUEUE
    return f"{option.name}: {kind}{' | None' if is_optional else ''}"

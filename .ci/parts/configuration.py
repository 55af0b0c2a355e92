"""The table of what ``fila.toml`` may say."""

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fila_cluster.run.config.settings import ENV_DELIMITER, ENV_PREFIX, Address, Section, Settings
from parts.markdown import field_docs, table


def options() -> str:
    """Return the table of all sections and keys."""
    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    rows = (row for name, kind in sections.items() if isinstance(kind, type) for row in _section(name, kind))
    return "\n".join(table(["section and key, and its variable", "type", "default", "meaning"], rows))


def _section(name: str, kind: type[Section]) -> list[tuple[str, ...]]:
    meanings = field_docs(kind)
    return [
        (
            f"`[{name}] {key}`<br>`{ENV_PREFIX}{name}{ENV_DELIMITER}{key}`".replace(
                f"{name}{ENV_DELIMITER}{key}", f"{name}{ENV_DELIMITER}{key}".upper()
            ),
            _type(field),
            _default(field.get_default(call_default_factory=True)),
            meanings[key],
        )
        for key, field in kind.model_fields.items()
    ]


def _type(field: FieldInfo) -> str:
    bounds = {type(each).__name__: each for each in field.metadata}
    low, high = getattr(bounds.get("Ge"), "ge", None), getattr(bounds.get("Le"), "le", None)
    between = (
        f", {low:,} to {high:,}"
        if high is not None and high < 2**63 - 1
        else f", at least {low:,}"
        if low is not None
        else ""
    )
    return _name(field.annotation) + between


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return _name(get_args(annotation)[0])
    if get_origin(annotation) is Annotated:
        return _name(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return "list of texts"
    if get_origin(annotation) is dict:
        return "table of texts"
    return {int: "number", str: "text", bool: "boolean", Path: "path", Address: "address"}[annotation]


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value is None else f"`{list(value) if isinstance(value, tuple) else value}`"

"""Payloads by their handlers' annotations.

``bytes`` as it is, ``str`` from UTF-8, a pydantic model by pydantic, and all that msgspec reads from JSON: ``dict``,
``list``, numbers, ``msgspec.Struct``, dataclasses, ``TypedDict``, unions of these. Errors name the place that does not fit,
and leave out the value where the library can.
"""

import sys
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import msgspec

from fila_cluster.app.decisions import Fail

Reader: TypeAlias = Callable[[bytes], Any]
"""Makes the handler's argument of a payload, or raises :class:`PayloadError`."""


class PayloadError(Fail):
    """The payload does not fit the handler's annotation. The message is dead-lettered, because a retry cannot help."""


def reader_of(annotation: Any) -> Reader:
    """Return the reader of payloads for this annotation; without one, ``bytes``. :class:`TypeError` if there is no reader."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if kind in (bytes, Parameter.empty, str):
        read = _text if kind is str else bytes
        return _checked(read, annotation) if any(isinstance(note, msgspec.Meta) for note in notes) else read
    if _is_model(kind):
        return _model_reader(kind)
    try:
        custom = isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.CustomType)
        decoder = msgspec.json.Decoder(annotation, dec_hook=_hook)
    except TypeError as error:
        raise TypeError(f"{_name(annotation)} cannot be read from JSON: {error}") from None
    if custom:
        raise TypeError(
            f"{_name(annotation)} cannot be read from JSON: use bytes, str, dict, a msgspec.Struct, a dataclass or a "
            "pydantic model"
        )
    return _json_reader(decoder, annotation)


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"the payload is not UTF-8: byte {error.start} of {len(payload)} is wrong") from None


def _checked(read: Reader, annotation: Any) -> Reader:
    """Check what ``read`` returns against the constraints of a ``msgspec.Meta``."""

    def checked(payload: bytes) -> Any:
        try:
            return msgspec.convert(read(payload), annotation)
        except msgspec.ValidationError as error:
            raise PayloadError(f"the payload is no {_name(annotation)}: {error}") from None

    return checked


def _json_reader(decoder: msgspec.json.Decoder[Any], annotation: Any) -> Reader:
    def read(payload: bytes) -> Any:
        try:
            return decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PayloadError(f"the payload is no {_name(annotation)}: {error}") from None

    return read


def _model_reader(model: Any) -> Reader:
    def read(payload: bytes) -> Any:
        try:
            return model.model_validate_json(payload)
        except ValueError as error:
            raise PayloadError(f"the payload is no {_name(model)}: {_misfit(error)}") from None

    return read


def _hook(kind: type, value: Any) -> Any:
    """Make a pydantic model within another type, for msgspec."""
    if not _is_model(kind):
        raise TypeError(f"{_name(kind)} cannot be read from JSON")
    try:
        return kind.model_validate(value)  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(_misfit(error)) from None


def _is_model(annotation: Any) -> bool:
    """Return whether this is a pydantic model. Then pydantic is imported already."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


MISFITS_MAX = 5


def _misfit(error: ValueError) -> str:
    """Return pydantic's errors without the values."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = errors(include_input=False, include_url=False, include_context=False)
    shown = [f"{one['msg']} - at `${''.join(map(_step, one['loc']))}`" for one in found[:MISFITS_MAX]]
    more = [f"and {len(found) - MISFITS_MAX} more"] if len(found) > MISFITS_MAX else []
    return "; ".join([*shown, *more])


def _step(place: object) -> str:
    return f"[{place}]" if isinstance(place, int) else f".{place}"


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

"""The sources of settings: defaults < a file < the environment < flags.

The file is ``--config``, else ``fila.toml`` in the working directory, else ``/etc/fila/fila.toml``. In the environment a
key is ``FILA_SECTION__KEY``. Errors are one line with the place, the key and the value.
"""

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from fila_cluster.run.config.settings import ENV_DELIMITER, ENV_PREFIX, Section, Settings
from fila_proto_zmq.errors import InvalidConfigError

LOCAL_FILE = Path("fila.toml")
SYSTEM_FILE = Path("/etc/fila/fila.toml")

Flags = Mapping[str, Mapping[str, Any]]
"""Values given on the command line, by section and key."""

_FLAG_NAMES = {
    ("server", "listen_addr"): "--listen",
    ("server", "data_dir"): "--data-dir",
    ("dashboard", "listen_addr"): "--dashboard",
    ("hosts", "worker_listen_addr"): "--worker-listen",
    ("replication", "log"): "--log",
}

_SECRET = {("replication", "properties")}
"""Keys whose values are in no error."""


def load(flags: Flags | None = None, file: Path | None = None) -> Settings:
    """Return the settings in force; :class:`InvalidConfigError` if one of them is wrong."""
    path = file_in_force(file)
    given = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in (flags or {}).items()}
    _check_environment()
    try:
        return _settings_over(_read(path) if path else {})(**given)  # type: ignore[arg-type] # checked by pydantic
    except ValidationError as error:
        raise InvalidConfigError(_explain(error.errors()[0], given, path)) from None


def file_in_force(file: Path | None = None) -> Path | None:
    """Return the file that is read: the one that is named, else the first one that is there; None: there is none."""
    return file or next((path for path in (LOCAL_FILE, SYSTEM_FILE) if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # bad TOML, or not UTF-8
        raise InvalidConfigError(f"{path} is not valid TOML: {error}") from None
    for section, keys in table.items():
        if section in Settings.model_fields and not isinstance(keys, dict):  # flags would hide the error
            raise InvalidConfigError(_no_table(path, section, keys))
    return table


def _settings_over(table: dict[str, Any]) -> type[Settings]:
    """Return settings with a file's ``table`` below the environment. (pydantic-settings fixes sources per class.)"""

    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, table)

    return Sourced


def _check_environment() -> None:
    """Refuse variables that look like settings and are not; pydantic-settings sees those of known sections only."""
    for variable in os.environ:
        name = variable.upper()
        if not name.startswith(ENV_PREFIX):
            continue
        section, delimiter, key = name.removeprefix(ENV_PREFIX).lower().partition(ENV_DELIMITER)
        if delimiter and key not in _keys(section):
            raise InvalidConfigError(f"{variable}: {_unknown(section, key)}")
        if not delimiter and section in Settings.model_fields:
            raise InvalidConfigError(f"{variable}: set the section's keys one by one, as {name}{ENV_DELIMITER}KEY")


def _keys(section: str) -> list[str]:
    field = Settings.model_fields.get(section)
    kind = field.annotation if field else None
    return sorted(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Section) else []


def _unknown(section: str, key: str | None) -> str:
    known = _keys(section)
    if not known or key is None:
        return f"there is no section [{section}]; {_suggest(section, sorted(Settings.model_fields))}"
    return f"there is no {key!r} in [{section}]; {_suggest(key, known)}"


def _suggest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _explain(error: ErrorDetails, flags: Flags, path: Path | None) -> str:
    section, *rest = (str(part) for part in error["loc"])
    key = rest[0] if rest else None
    if error["type"] == "extra_forbidden":
        return f"{path}: {_unknown(section, key)}"
    if key is None:
        return _no_table(path, section, error["input"])
    place = _place(section, key, error["input"], flags, path)
    return f"{place}: {error['msg'].removeprefix('Value error, ').removeprefix('Input ')}"


def _no_table(path: Path | None, section: str, value: object) -> str:
    return f"{path}: {section} = {value!r}: this is the name of a section; write [{section}] and keys below it"


def _place(section: str, key: str, value: object, flags: Flags, path: Path | None) -> str:
    """Return the source of a value, by precedence, with the value as it was given there."""
    if key in flags.get(section, {}):
        return f"{_FLAG_NAMES.get((section, key), '--' + key)} {value}"
    variable = f"{ENV_PREFIX}{section}{ENV_DELIMITER}{key}".upper()
    is_secret = (section, key) in _SECRET
    set_as = next((name for name in os.environ if name.upper() == variable), None)
    if set_as is not None:
        return set_as if is_secret else f"{set_as}={value}"
    return f"{path}: [{section}] {key}" if is_secret else f"{path}: [{section}] {key} = {value!r}"

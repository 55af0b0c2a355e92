"""Find the app that ``MODULE:APP`` names."""

import importlib
import sys
from pathlib import Path

from fila_cluster.app import App


class CannotLoadError(Exception):
    """The app does not exist; the text has the remedy."""


def split_name(name: str) -> tuple[str, str]:
    """Return the module and the attribute that ``MODULE:APP`` names."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise CannotLoadError(
            f"{name!r} names no app: write MODULE:APP, such as shop.handlers:app for `app` in shop/handlers.py"
        )
    return module, attribute


def load(name: str, folder: Path) -> App:
    """Import the module, looking in ``folder`` first, and return the app. Errors of the module itself pass through."""
    module_name, attribute = split_name(name)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # of an import within it
        raise CannotLoadError(f"there is no module {error.name!r} in {folder} or among the installed packages") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CannotLoadError(f"module {module_name!r} has no {attribute!r}: write MODULE:APP, with the name of its App")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise CannotLoadError(f"{name} is {type(found).__name__}, not a fila_cluster.app.App")
    return found

"""How a bug is planted."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


def replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put what ``make`` returns in the place of a name of the product."""
    stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))

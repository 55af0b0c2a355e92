"""Notice that source files have changed, for ``--reload``."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fila_cluster.run.supervisor import CannotStartError


def require() -> None:
    """Raise :class:`CannotStartError` unless what ``--reload`` needs is installed."""
    try:
        import watchfiles  # noqa: F401, PLC0415
    except ImportError:
        raise CannotStartError("--reload needs the extra `reload`: pip install 'fila-cluster[reload]'") from None


async def watch(folder: Path, changed: Callable[[list[str]], None], stop: asyncio.Event) -> None:
    """Call ``changed`` with the Python files below ``folder`` that were changed, until ``stop``. Changes of a moment come together."""
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415  # an extra

    async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=stop, recursive=True):
        changed(sorted({path for _, path in changes}))

"""The testing kit in this project's own tests."""

from importlib.metadata import entry_points

PLUGIN = [] if entry_points(group="pytest11", name="fila") else ["-p", "fila_cluster.testing.plugin"]
"""Options for pytest to load the kit's plugin, unless the installed package brings it."""

"""Options that several commands have which start processes, or open their data."""

from pathlib import Path

import click

CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Instead of ./fila.toml or /etc/fila/fila.toml."
)
LISTEN = click.option("--listen", metavar="ADDR", help="Where clients connect. Default: tcp://127.0.0.1:5555.")
WORKERS = click.option("--workers", type=int, metavar="N", help="Worker processes. Default: CPU cores, at most the shards.")
DASHBOARD = click.option("--dashboard", metavar="ADDR", help="Where the dashboard listens. Default: 127.0.0.1:8555.")
NO_DASHBOARD = click.option("--no-dashboard", is_flag=True, help="Run without the dashboard.")
INSECURE = click.option(
    "--insecure",
    is_flag=True,
    help="Listen on addresses that other machines can reach, without authentication or encryption.",
)

"""``fila-cluster restore``."""

from pathlib import Path

import click

from fila_cluster.cli.data.backup import facts_of
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.figures import counted, sized


@click.command()
@click.argument("target")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Empty, or not there yet.")
@click.option("--id", "backup", metavar="ID", help="Which backup. Default: the last one.")
@click.pass_obj
def command(invocation: Invocation, target: str, data_dir: Path, backup: str | None) -> None:
    """Restore a backup from TARGET to a new data directory. Then start a cluster on it with `fila-cluster up`."""
    from fila_cluster.run.backup.repository import Repository  # noqa: PLC0415 # quick --help
    from fila_cluster.run.backup.restoring import restore  # noqa: PLC0415
    from fila_cluster.run.backup.target import target_at  # noqa: PLC0415

    manifest = restore(Repository(target_at(target)), data_dir, backup)
    invocation.show(
        facts_of(manifest) | {"data_dir": str(data_dir)},
        f"restored backup {manifest.id} of {manifest.cut_at:%Y-%m-%d %H:%M:%S %Z} to {data_dir}: "
        f"{counted(manifest.shards, 'shard')}, {sized(manifest.size_bytes)}",
    )

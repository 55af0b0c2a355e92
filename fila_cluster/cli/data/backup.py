"""``fila-cluster backup`` and ``fila-cluster restore``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import table
from fila_cluster.figures import counted, sized

if TYPE_CHECKING:
    from rich.table import Table

    from fila_cluster.run.backup.repository import BackupManifest, Repository


@click.command()
@click.argument("target")
@click.option("--list", "list_", is_flag=True, help="List the backups there.")
@click.option("--verify", is_flag=True, help="Read all backups there, and check every hash.")
@click.option("--id", "backup", metavar="ID", help="With --verify: this backup only.")
@click.option("--prune", is_flag=True, help="Remove old backups, and what interrupted ones left. Needs --keep.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="With --prune: keep the last N backups.")
@click.pass_obj
def backup_command(
    invocation: Invocation, target: str, list_: bool, verify: bool, backup: str | None, prune: bool, keep: int | None
) -> None:
    """Back up the running cluster to TARGET: a folder, or a URL like s3://bucket/folder.

    Run it on the workers' machine, as their user. Files that TARGET has already are not copied again. Use a TARGET for one
    cluster only.
    """
    if list_ + verify + prune > 1:
        raise click.UsageError("--list, --verify and --prune do not go together.")
    if backup is not None and not verify:
        raise click.UsageError("--id goes with --verify.")
    if (keep is not None) != prune:
        raise click.UsageError("--prune and --keep N go together.")
    from fila_cluster.run.backup.repository import Repository  # noqa: PLC0415 # quick --help
    from fila_cluster.run.backup.target import target_at  # noqa: PLC0415

    repository = Repository(target_at(target))
    if list_:
        _list(invocation, repository)
    elif verify:
        _verify(invocation, repository, backup)
    elif keep is not None:
        _prune(invocation, repository, keep)
    else:
        _take(invocation, repository)


def _take(invocation: Invocation, repository: "Repository") -> None:
    from fila_cluster.run.backup.taking import take  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        manifest = take(client, repository)
    invocation.show(
        facts_of(manifest),
        f"backup {manifest.id}: {counted(manifest.shards, 'shard')}, {sized(manifest.size_bytes)}, "
        f"{sized(manifest.copied_bytes)} of it copied to {repository.target.name}",
    )


def facts_of(manifest: "BackupManifest") -> dict[str, Any]:
    """Return the JSON form of a backup."""
    return {
        "id": manifest.id,
        "began_at": manifest.began_at,
        "cut_at": manifest.cut_at,
        "ended_at": manifest.ended_at,
        "version": manifest.version,
        "shards": manifest.shards,
        "files": len(manifest.every_file),
        "size_bytes": manifest.size_bytes,
        "copied_bytes": manifest.copied_bytes,
    }


def _list(invocation: Invocation, repository: "Repository") -> None:
    manifests = repository.all()
    rows = _rows(manifests) if manifests else f"{repository.target.name} has no backup"
    invocation.show([facts_of(manifest) for manifest in manifests], rows)


def _rows(manifests: "list[BackupManifest]") -> "Table":
    rows = table("=id", "cut at", "#shards", "#size", "#copied", "version")
    for manifest in manifests:
        cut_at = f"{manifest.cut_at:%Y-%m-%d %H:%M:%S %Z}"
        rows.add_row(
            manifest.id,
            cut_at,
            counted(manifest.shards),
            sized(manifest.size_bytes),
            sized(manifest.copied_bytes),
            manifest.version,
        )
    return rows


def _verify(invocation: Invocation, repository: "Repository", backup: str | None) -> None:
    manifests = repository.all() if backup is None else [repository.manifest(backup)]
    wrong = repository.verify(manifests)
    lines = [f"{name}: {'good' if not faults else '; '.join(faults)}" for name, faults in wrong.items()]
    invocation.show(wrong, *(lines or [f"{repository.target.name} has no backup"]))
    if bad := [name for name, faults in wrong.items() if faults]:
        raise click.ClickException(f"{counted(len(bad), 'backup')} cannot be restored: {', '.join(bad)}")


def _prune(invocation: Invocation, repository: "Repository", keep: int) -> None:
    removed, files, size_bytes = repository.prune(keep)
    invocation.show(
        {"removed": removed, "files": files, "size_bytes": size_bytes},
        f"removed {counted(len(removed), 'backup')} and {counted(files, 'file')}, {sized(size_bytes)}",
    )


@click.command()
@click.argument("target")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Empty, or not there yet.")
@click.option("--id", "backup", metavar="ID", help="Which backup. Default: the last one.")
@click.pass_obj
def restore_command(invocation: Invocation, target: str, data_dir: Path, backup: str | None) -> None:
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

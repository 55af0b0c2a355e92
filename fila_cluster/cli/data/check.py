"""``fila-cluster check``."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fila_cluster.cli.data.salvage_files import SalvageFolder
from fila_cluster.cli.shared.flags import CONFIG
from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.figures import counted
from fila_cluster.run.backup.cut import cut_of
from fila_cluster.run.backup.manifest import new_id
from fila_cluster.run.config.loading import load
from fila_cluster.run.supervisor.data_dir import DataDir, DirectoryInUseError
from fila_proto_zmq.errors import StorageError
from fila_worker.check.directory import ShardReport, check_directory, check_path, repair, stored_shards
from fila_worker.check.salvage import Salvage
from fila_worker.storage.made import IDENTITY_FILE

Progress = Callable[[str, int], None]


@dataclass(slots=True)
class _Outcome:
    """What a run found and did. ``identity``: what is wrong with ``fila.json``, if anything."""

    data_dir: Path
    identity: str | None
    reports: list[ShardReport]
    salvaged: SalvageFolder | None = None

    @property
    def clean(self) -> bool:
        return self.identity is None and all(report.clean for report in self.reports)


@click.command()
@click.option("--data-dir", metavar="DIR", help="The data directory, or a copy or backup of it. Default: ./fila-data.")
@click.option("--online", is_flag=True, help="Check a running cluster, by checkpoints of its shards on this machine.")
@click.option("--repair", "repairing", is_flag=True, help="Write again what can be derived from the messages.")
@click.option(
    "--salvage",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write the readable messages of the damaged shards to a new folder, or of all shards if none is damaged.",
)
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_obj
def command(
    invocation: Invocation,
    data_dir: str | None,
    online: bool,
    repairing: bool,
    salvage: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Check a data directory that no process serves: every file, every record, and what follows from one for another.

    With --online it checks the cluster that runs: name its endpoint instead of the directory, and run it on the workers' machine, as
    their user. It reads only, unless --repair is given. The exit code is 0 if all is well (after the repairs, if any), else 1.
    """
    if online and (repairing or salvage is not None or data_dir is not None):
        raise click.UsageError("--online only reads, and asks the cluster where its files are: it goes with no other option.")
    if online:
        outcome = _checked_online(invocation)
    else:
        outcome = _checked(_opened(load({"server": {"data_dir": data_dir}}, config).server.data_dir), repairing=repairing)
    if salvage is not None:
        outcome.salvaged = _salvage(outcome, salvage)
    if as_json or invocation.as_json:
        print_json(_plain(outcome))
    else:
        _print(outcome)
    sys.exit(0 if outcome.clean else 1)


def _opened(data_dir: str | Path) -> DataDir:
    path = Path(data_dir)
    try:
        directory = DataDir(path, damaged=True)
    except DirectoryInUseError as error:
        holder = str(error).partition(": ")[0]
        raise click.ClickException(f"{holder}: stop the cluster to check it, or use --online") from None
    if directory.shards is None and directory.problem is None:
        raise click.ClickException(f"{directory.path} is no data directory of fila-cluster: there is no {IDENTITY_FILE}")
    return directory


# --- check and repair -------------------------------------------------------------------------------------------------


def _checked(directory: DataDir, *, repairing: bool) -> _Outcome:
    shards, problem = _number_of_shards(directory)
    if problem is not None and repairing and shards is not None:
        directory.restore_identity(shards)
        problem = None
    if shards is None:
        return _Outcome(directory.path, problem, [])
    reports = [
        repair(report, shards, _progress("repair")) if repairing else report
        for report in check_directory(directory.path, shards, _progress("check"))
    ]
    _clear_progress()
    return _Outcome(directory.path, problem, reports)


def _checked_online(invocation: Invocation) -> _Outcome:
    """Check all shards as they were at one moment. The cluster goes on, and what it removes meanwhile takes disk until the end."""
    with invocation.connect() as client, cut_of(client, new_id(datetime.now(UTC))) as cut:
        progress, shards = _progress("check"), len(cut.parts)
        reports = [
            ShardReport(part.shard, Path(part.path), check_path(Path(part.path), part.shard, shards, progress, marked=False))
            for part in cut.parts
        ]
        _clear_progress()
        return _Outcome(cut.data_dir, None, reports)


def _number_of_shards(directory: DataDir) -> tuple[int | None, str | None]:
    """Return how many shards there are, by ``fila.json`` or else by the shards, and what is wrong with ``fila.json``."""
    stored = stored_shards(directory.path)
    agreed = next(iter(stored)) if len(stored) == 1 else None
    if directory.problem is not None:
        return agreed, directory.problem
    if agreed is not None and agreed != directory.shards:
        problem = f"{directory.path / IDENTITY_FILE} says {directory.shards} shards, and the shards say {agreed}"
        return agreed, problem
    return directory.shards, None


def _progress(verb: str) -> Progress | None:
    """Return a function that shows on a terminal how far a long check is."""
    if not sys.stderr.isatty():
        return None
    return lambda family, number: click.echo(f"\r\x1b[K{verb} {family}: {number:,}\r", err=True, nl=False)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)


# --- salvage ----------------------------------------------------------------------------------------------------------


def _salvage(outcome: _Outcome, out: Path) -> SalvageFolder:
    folder = SalvageFolder(out)
    there = [report for report in outcome.reports if report.here and report.path.is_dir()]
    damaged = [report for report in there if not report.clean]
    for report in damaged or there:
        try:
            folder.write(report.index, Salvage(report.path, out).messages())
        except StorageError as error:
            report.refused = f"nothing could be salvaged: {error}"
    return folder


# --- output -----------------------------------------------------------------------------------------------------------


def _print(outcome: _Outcome) -> None:
    if outcome.identity is not None:
        click.echo(outcome.identity)
    if not outcome.reports:
        click.echo("no shard says how many there are: restore the data directory from a backup")
    for report in outcome.reports:
        _print_report(report)
    if outcome.salvaged is not None:
        _print_salvaged(outcome.salvaged)
    if not outcome.clean:
        click.echo(_advice(outcome))


def _print_report(report: ShardReport) -> None:
    repaired = f", after {counted(report.repaired, 'repair')}" if report.repaired else ""
    if not report.here:
        click.echo(f"shard {report.index}: not kept here")
    elif report.clean:
        click.echo(f"shard {report.index}: clean{repaired}")
    else:
        click.echo(f"shard {report.index}: {counted(len(report.findings), 'finding')}{repaired}")
        for finding in report.findings.kept:
            click.echo(f"  {finding.kind}: {_one_line(finding.text)}")
        for kind, more in report.findings.omitted():
            click.echo(f"  {kind}: {more:,} more of this kind")
    if report.refused is not None:
        click.echo(f"  {_one_line(report.refused)}")


def _print_salvaged(folder: SalvageFolder) -> None:
    click.echo(f"salvaged {counted(folder.counts.total(), 'message')} to {folder.path}")
    for name, count in sorted(folder.counts.items()):
        click.echo(f"  {name}: {count:,}")
    if folder.unreadable:
        click.echo(f"  {counted(folder.unreadable, 'message')} with records that cannot be read")


def _advice(outcome: _Outcome) -> str:
    findings = [report.findings for report in outcome.reports]
    if sum(each.repairable for each in findings) == sum(map(len, findings)) and outcome.reports:
        return "all of it can be repaired: run it again with --repair"
    return "what --repair does not put right is lost here: restore the shard from a backup, or write what is readable with --salvage"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(outcome: _Outcome) -> dict[str, Any]:
    """Return the JSON form."""
    plain: dict[str, Any] = {
        "data_dir": str(outcome.data_dir),
        "clean": outcome.clean,
        "identity": outcome.identity,
        "shards": [_plain_report(report) for report in outcome.reports],
    }
    if outcome.salvaged is not None:
        plain["salvaged"] = {
            "path": str(outcome.salvaged.path),
            "messages": dict(outcome.salvaged.counts),
            "unreadable": outcome.salvaged.unreadable,
        }
    return plain


def _plain_report(report: ShardReport) -> dict[str, Any]:
    findings = [
        {"kind": each.kind, "text": each.text, "queue": each.queue, "file": each.file, "repairable": each.repairable}
        for each in report.findings.kept
    ]
    return {
        "shard": report.index,
        "path": str(report.path),
        "here": report.here,
        "clean": report.clean,
        "findings": findings,
        "counts": dict(report.findings.counts),
        "repaired": report.repaired,
        "refused": report.refused,
    }

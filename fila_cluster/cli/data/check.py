"""``fila-cluster check``, and salvaged messages as files that ``enqueue --file`` takes: one for each queue."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from fila_cluster.cli.shared.invocation import CONFIG, Invocation, print_json
from fila_cluster.cli.shared.jsonl import write_message
from fila_cluster.client.message import Message, utc
from fila_cluster.figures import counted
from fila_cluster.run.backup.repository import new_id
from fila_cluster.run.backup.taking import cut_of
from fila_cluster.run.config.loading import load
from fila_cluster.run.supervisor.data_dir import DataDir, DirectoryInUseError
from fila_proto_zmq.errors import InvalidFrameError, StorageError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT
from fila_proto_zmq.record import open_envelope, unpack_record
from fila_worker.check.directory import ShardReport, check_directory, check_path, repair, stored_shards
from fila_worker.check.salvage import Salvage, Salvaged
from fila_worker.storage.made import IDENTITY_FILE

Progress = Callable[[str, int], None]
_TTL_MS_MIN = 1


class SalvageFolder:
    """A new folder for salvaged messages. ``counts``: how many are in each file."""

    def __init__(self, path: Path) -> None:
        """Make the folder. Raises :class:`click.ClickException` if there is something in it."""
        self.path = path
        self.counts: Counter[str] = Counter()
        self.unreadable = 0
        """The messages whose records are there, and cannot be read."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise click.ClickException(f"cannot salvage to {path}: {error.strerror}") from None
        if occupied:
            raise click.ClickException(f"{path} is not empty: name a new folder for the salvaged messages")

    def write(self, shard: int, messages: Iterable[Salvaged]) -> None:
        """Write the messages of a shard."""
        now_ms = time.time_ns() // 1_000_000
        try:
            for name, group in groupby(messages, key=lambda each: _file_of(shard, each)):
                self._append(name, group, now_ms)
        except OSError as error:
            raise click.ClickException(f"cannot write to {self.path}: {error.strerror}") from None

    def _append(self, name: str, messages: Iterable[Salvaged], now_ms: int) -> None:
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            for salvaged in messages:
                try:
                    line = write_message(as_message(salvaged, now_ms))
                except InvalidFrameError:
                    self.unreadable += 1
                    continue
                file.write(line + "\n")
                self.counts[name] += 1


def _file_of(shard: int, message: Salvaged) -> str:
    """Return the file for a message. The slash of a namespace is written as %2F."""
    if message.queue is None:
        return f"shard-{shard:04d} lane-{message.lane}.jsonl"
    return message.queue.replace("/", "%2F") + ".jsonl"


def as_message(salvaged: Salvaged, now_ms: int) -> Message:
    """Return a message to enqueue again, with the rest of its times. Raises :class:`InvalidFrameError`."""
    record = unpack_record(salvaged.record)
    headers, payload = open_envelope(record.envelope)
    extension = record.extension
    message = Message(
        payload,
        headers or None,
        fairness_key=salvaged.fairness_key,
        weight=salvaged.weight,
        throttle_keys=salvaged.throttle_keys or None,
        priority=record.priority,
    )
    if extension.cost_milli != COST_MILLI_DEFAULT:
        message.cost = extension.cost_milli / 1000
    if salvaged.due_ms is not None and salvaged.due_ms > now_ms:
        message.deliver_at = utc(salvaged.due_ms)
    if extension.expires_ms is not None:
        message.ttl = max(_TTL_MS_MIN, extension.expires_ms - now_ms) / 1000
    if extension.lease_ms is not None:
        message.lease = extension.lease_ms / 1000
    return message


@dataclass(slots=True)
class _Outcome:
    """The result of a run. ``identity``: the problem with ``fila.json``, if any."""

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
def check_command(
    invocation: Invocation,
    data_dir: str | None,
    online: bool,
    repairing: bool,
    salvage: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Check a data directory that no process serves: every file, every record, and what follows from one for another.

    With --online it checks the cluster that runs: name its endpoint instead of the directory, and run it on the workers'
    machine, as their user. It reads only, unless --repair is given. The exit code is 0 if all is well (after the repairs, if
    any), else 1.
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
    """Check all shards as of one moment. The cluster keeps running, and its removed files take disk until the end."""
    with invocation.connect() as client, cut_of(client, new_id(datetime.now(UTC))) as cut:
        progress, shards = _progress("check"), len(cut.parts)
        reports = [
            ShardReport(part.shard, Path(part.path), check_path(Path(part.path), part.shard, shards, progress, marked=False))
            for part in cut.parts
        ]
        _clear_progress()
        return _Outcome(cut.data_dir, None, reports)


def _number_of_shards(directory: DataDir) -> tuple[int | None, str | None]:
    """Return the number of shards, by ``fila.json`` or else by the shards, and the problem with ``fila.json``."""
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
    return "the rest is lost here: restore the shard from a backup, or write what is readable with --salvage"


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

"""The root of the command line: options of every command, and the form of failures."""

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fila_cluster.cli.shared.invocation import Invocation, discard_output


class LazyGroup(click.Group):
    """Subcommands, each with its line of help, by their modules in a package.

    A module is imported only when one of its commands runs, so that ``--help`` stays quick. ``up`` is ``up_command`` there.
    """

    def __init__(self, *args: Any, package: str, modules: dict[str, dict[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = {name: f"{package}.{module}" for module, names in modules.items() for name in names}
        self._summaries = {name: summary for names in modules.values() for name, summary in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order given."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._summaries:
            return None
        command = getattr(import_module(self._modules[cmd_name]), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing the commands."""
        names = [CompletionItem(name, help=text) for name, text in self._summaries.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


COMMANDS = {
    "processes.cluster": {
        "up": "Run a cluster in the foreground.",
        "node": "Run one host of a cluster on several hosts.",
        "router": "Run a router alone.",
        "worker": "Run a worker alone.",
        "work": "Run the handlers of an app, MODULE:APP, in processes.",
    },
    "processes.shards": {
        "shard": "Move shards from one worker to another.",
        "drain": "Move all shards of a worker, or of a host, to the others.",
    },
    "status": {"status": "Show the cluster and its workers.", "top": "Watch the cluster live: queues, keys, workers."},
    "doctor": {"doctor": "Check this machine, and the cluster that runs."},
    "demo": {"demo": "Show in some seconds what the broker does."},
    "bench": {"bench": "Measure the cluster: rates, latencies, a histogram."},
    "config": {"config": "Read and change the runtime config."},
    "throttle": {"throttle": "Limit throttle keys: rates, bursts, concurrency."},
    "auth": {"auth": "Make and revoke API keys."},
    "connections": {
        "audit": "Show who did what: the latest administrative acts.",
        "connections": "Show who is connected, and close connections.",
    },
    "hook": {"hook": "Try out Lua hooks."},
    "spark": {"spark": "Move data in and out in bulk, with Apache Spark."},
    "queues.queue": {
        "queue": "Create, change, delete, list and inspect queues.",
        "template": "Set the options of queues that the first enqueue creates.",
    },
    "queues.messages": {
        "enqueue": "Put messages into a queue.",
        "consume": "Take messages out of a queue.",
        "message": "Cancel single messages.",
        "redrive": "Send dead letters back to where they came from.",
        "why": "Say why a queue, a message or a fairness key waits.",
    },
    "queues.schedule": {"schedule": "Keep schedules: messages at the times of a cron expression, or at an interval."},
    "queues.outbox": {"outbox": "Relay the messages that database transactions have added."},
    "data.check": {"check": "Check, repair or salvage a data directory, offline."},
    "data.reshard": {"reshard": "Change the number of shards of a stopped cluster."},
    "data.backup": {
        "backup": "Back up a running cluster, and look after its backups.",
        "restore": "Restore a backup to a new data directory.",
    },
}


class _Root(LazyGroup):
    """Prints errors of the library as one line on standard error, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        from fila_cluster.run.supervisor import CannotStartError  # noqa: PLC0415 # quick --help
        from fila_proto_zmq.errors import FilaError  # noqa: PLC0415

        try:
            return super().invoke(ctx)
        except (FilaError, CannotStartError) as error:
            raise click.ClickException(" ".join(str(error).split("\n"))) from error
        except OSError as error:  # of standard input or output: commands explain errors of files themselves
            if error.errno == errno.EPIPE:
                raise  # the reader of a pipe has closed it; click ends quietly
            _drop_what_cannot_be_written()
            raise click.ClickException(f"cannot read the input or write the output: {error.strerror or error}") from error


@click.group(
    cls=_Root,
    package="fila_cluster.cli",
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.option(
    "--endpoint",
    metavar="URL",
    help="The cluster to talk to, several routers with commas between: FILA_ENDPOINT, or tcp://127.0.0.1:5555.",
)
@click.option(
    "--api-key", metavar="KEY", help="Who you are, with authentication: FILA_API_KEY (better: others see arguments)."
)
@click.option("--server-key", metavar="KEY", help="The server's public key, with authentication: FILA_SERVER_KEY.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.version_option(package_name="fila-cluster", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context, endpoint: str | None, api_key: str | None, server_key: str | None, as_json: bool) -> None:
    """A durable message broker in which fairness and limits are part of delivery.

    Start one with `fila-cluster up`; the other commands talk to it. Without a command it says what to do next.
    """
    for variable, value in (("FILA_API_KEY", api_key), ("FILA_SERVER_KEY", server_key)):
        if value is not None:
            os.environ[variable] = value  # every client of the command finds it, in child processes too
    ctx.obj = Invocation(endpoint, as_json)
    if ctx.invoked_subcommand is None:
        from fila_cluster.cli.processes.next_step import suggest  # noqa: PLC0415 # quick --help

        suggest(ctx.obj)


def main() -> None:
    """Run the command. Characters that the terminal's encoding lacks are printed as question marks."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr] # TextIOWrapper, unless a test replaced it
    root(prog_name="fila-cluster")


def _drop_what_cannot_be_written() -> None:
    """Empty the buffer of standard output if it cannot be written: Python would fail at its end with another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()


def _replace_closed_streams() -> None:
    """Open standard streams that a caller has closed, in order, so that no other file gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 # for as long as the process lives
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)

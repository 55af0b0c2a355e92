"""What a person sees at a terminal: what runs, where, and two commands to try next."""

import importlib.util
import sys

import click

from fila_cluster.cli.shared.invocation import Invocation, print_ready
from fila_cluster.run.config.settings import Address, Settings
from fila_cluster.run.supervisor.up import Announce

FIRST_QUEUE = "orders"


def announce(listen: Address, dashboard: str | None, workers: int) -> None:
    """Print the line that says that all parts serve."""
    watched = f"dashboard {dashboard} · " if dashboard else ""
    print_ready(f"{listen.endpoint} · {watched}{workers} workers")


def announcing(invocation: Invocation, settings: Settings) -> Announce:
    """Return what says that a cluster serves: the line that programs read, and more for people at a terminal."""
    if invocation.as_json or not sys.stdout.isatty():
        return announce

    def welcome(listen: Address, dashboard: str | None, workers: int) -> None:
        announce(listen, dashboard, workers)
        click.echo("\n".join(welcome_lines(settings, listen, dashboard)))

    return welcome


def quieter(invocation: Invocation, settings: Settings) -> Settings:
    """Return the settings with a log of warnings, if only a person at a terminal reads it and has chosen no level."""
    telemetry = settings.telemetry
    for_people = sys.stdout.isatty() and sys.stderr.isatty() and not invocation.as_json
    if not for_people or "log_level" in telemetry.model_fields_set:
        return settings
    return settings.model_copy(update={"telemetry": telemetry.model_copy(update={"log_level": "warning"})})


def welcome_lines(settings: Settings, listen: Address, dashboard: str | None) -> list[str]:
    """Return what follows the line ``ready: …`` at a terminal."""
    shown = [("data", str(settings.server.data_dir.expanduser().absolute()))]
    if dashboard is not None:
        shown.append(("dashboard", f"{dashboard} · {_login(settings)}"))
        if importlib.util.find_spec("nicegui") is None:
            shown.append(("", "it has /metrics and /readyz only; for its pages: pip install 'fila-cluster[dashboard]'"))
    if settings.auth.enabled:
        shown.append(("commands", "need FILA_API_KEY and FILA_SERVER_KEY, as `fila-cluster auth init` has printed them"))
    first, second = next_commands(listen.reachable.endpoint)
    shown += [
        ("try next", first),
        ("", second),
        ("", "in another terminal; `fila-cluster` alone suggests more"),
        ("stop", "Ctrl-C"),
    ]
    return ["", *(f"  {name:<11}{text}" for name, text in shown)]


def next_commands(endpoint: str) -> tuple[str, str]:
    """Return the first two commands for somebody who has a broker at ``endpoint``."""
    return command_line(endpoint, f"queue create {FIRST_QUEUE}"), command_line(endpoint, f"enqueue {FIRST_QUEUE} hello")


def command_line(endpoint: str, command: str) -> str:
    """Return a command for the cluster at ``endpoint``, as one types it."""
    from fila_cluster.client.checks import endpoint_or_default  # noqa: PLC0415 # a quick start of the cluster

    named = "" if endpoint == endpoint_or_default(None) else f"--endpoint {endpoint} "
    return f"fila-cluster {named}{command}"


def _login(settings: Settings) -> str:
    if settings.auth.enabled:
        return "log in with an API key, as `fila-cluster auth init` has printed it"
    if settings.dashboard.listen_addr.is_loopback:
        return "no login: only this machine reaches it"
    return "no login: all who reach this address may use it"

"""``fila-cluster auth …``."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fila_cluster.cli.shared.invocation import Invocation, print_json
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.cli.shared.tables import table

if TYPE_CHECKING:
    from fila_cluster import Client
    from fila_proto_zmq.commands import KeyView


_INIT = """\
api key: {made.api_key}
server key: {made.server_key}
worker token: {made.worker_token}

Keep them: nothing shows them again. The API key may do everything; clients pass it as api_key=, or FILA_API_KEY. The server
key is public; clients pin it as server_key=, or FILA_SERVER_KEY. Workers on other hosts join with the token, as
FILA_WORKER_TOKEN."""


@click.group()
def auth_command() -> None:
    """Make the keys of a cluster with authentication, and manage its API keys while it runs.

    A permission is KIND:PATTERN. KIND is produce, consume or admin, PATTERN a queue's name, or the beginning of names and *.
    """


@auth_command.command("init", short_help="Make the server's keys and the first API key.")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where the cluster is kept.")
@click.pass_obj
def init(invocation: Invocation, data_dir: Path) -> None:
    """Make the server's key pair and the first API key, which may do everything, and print both. Nothing shows them again.

    Then start the cluster with [auth] enabled = true.
    """
    from fila_cluster.run.supervisor.auth import FIRST_KEY, init_auth  # noqa: PLC0415 # quick --help

    made = init_auth(data_dir.expanduser().absolute())
    if invocation.as_json:
        print_json(
            {"name": FIRST_KEY, "api_key": made.api_key, "server_key": made.server_key, "worker_token": made.worker_token}
        )
        return
    click.echo(_INIT.format(made=made))  # unformatted: no line width


_PREPARED = """\
next server key: {next}

Nothing has changed yet. Give all clients both keys, as server_key= or FILA_SERVER_KEY:
{server},{next}
Then let the server use the next one: fila-cluster auth rotate-server-key --data-dir {data_dir} --switch"""

_SWITCHED = """\
server key: {server}

A cluster that runs on this directory uses it within some seconds; a router that runs alone, after its next start. Clients need
only this key from now on. Those that have only the earlier one are refused."""


@auth_command.command("rotate-server-key", short_help="Replace the server's key without a stop.")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where the cluster is kept.")
@click.option("--switch", is_flag=True, help="Use the next key now: all clients have both.")
@click.pass_obj
def rotate_server_key(invocation: Invocation, data_dir: Path, switch: bool) -> None:
    """Make the server's next key pair, and print its public key; with --switch, use it.

    Between the two steps clients are given both keys. The keys of workers on other hosts stay as they are.
    """
    from fila_cluster.run.supervisor.auth import prepare_server_key, switch_server_key  # noqa: PLC0415 # quick --help

    directory = data_dir.expanduser().absolute()
    stored = switch_server_key(directory) if switch else prepare_server_key(directory)
    shown = {"server": stored.server.public_key, "next": stored.next_server.public_key if stored.next_server else None}
    if invocation.as_json:
        print_json({"server_key": shown["server"], "next_server_key": shown["next"]})
        return
    click.echo((_SWITCHED if switch else _PREPARED).format(**shown, data_dir=data_dir))  # unformatted: no line width


@auth_command.group()
def key() -> None:
    """Make, list and revoke API keys. Needs an admin key."""


@key.command("create", short_help="Make an API key.")
@click.option("--name", required=True, metavar="NAME", help="What people call it.")
@click.option("--expires", type=DURATION, metavar="D", help="How long it holds: 12h, 500ms, … Default: for ever.")
@click.option("--allow", multiple=True, metavar="KIND:PATTERN", help="A permission; may be repeated.")
@click.pass_obj
def create(invocation: Invocation, name: str, expires: float | None, allow: tuple[str, ...]) -> None:
    """Make an API key and print it. Nothing shows it again. Its permissions are part of those of your own key, as admin."""
    from fila_cluster.client.calls import cluster  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        made = client.request(cluster.create_key(name, allow, expires))
    invocation.show({"api_key": made.secret, **_shown(made.key)}, f"api key: {made.secret}")


@key.command("list", short_help="List API keys.")
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the API keys that your own key may manage."""
    with invocation.connect() as client:
        keys = list(_all_keys(client))
    rows = table("name", "permissions", "created", "expires", "last used")
    for each in keys:
        rows.add_row(each.name, " ".join(each.allow), *(_date(ms) for ms in (each.created_ms, each.expires_ms, each.used_ms)))
    invocation.show([_shown(each) for each in keys], rows if keys else "no keys")


@key.command("revoke", short_help="End an API key.")
@click.argument("name")
@click.pass_obj
def revoke(invocation: Invocation, name: str) -> None:
    """End the API key NAME within a second, on open connections, too."""
    from fila_cluster.client.calls import cluster  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        client.request(cluster.revoke_key(name))
    invocation.show({"name": name, "revoked": True}, f"revoked {name}")


@auth_command.command("grant", short_help="Add permissions to an API key.")
@click.argument("name")
@click.argument("allow", nargs=-1, required=True, metavar="KIND:PATTERN…")
@click.pass_obj
def grant(invocation: Invocation, name: str, allow: tuple[str, ...]) -> None:
    """Add permissions to the API key NAME."""
    from fila_cluster.client.calls import cluster  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        client.request(cluster.grant_key(name, allow))
        shown = client.request(cluster.list_keys(name)).keys[0]
    invocation.show(_shown(shown), f"{name}: {' '.join(shown.allow)}")


@auth_command.command("show", short_help="Show an API key.")
@click.argument("name")
@click.pass_obj
def show(invocation: Invocation, name: str) -> None:
    """Show what the API key NAME may do. Its secret is not known."""
    from fila_cluster.client.calls import cluster  # noqa: PLC0415 # quick --help

    with invocation.connect() as client:
        shown = client.request(cluster.list_keys(name)).keys[0]
    rows = table("", "")
    for field, value in _shown(shown).items():
        rows.add_row(field, " ".join(value) if isinstance(value, list) else str(value or "never"))
    invocation.show(_shown(shown), rows)


def _all_keys(client: "Client") -> "Iterator[KeyView]":
    from fila_cluster.client.calls import cluster  # noqa: PLC0415 # quick --help

    after, more = "", True
    while more:
        page = client.request(cluster.list_keys(after=after))
        yield from page.keys
        after, more = page.keys[-1].name if page.keys else "", page.more


def _shown(view: "KeyView") -> dict[str, Any]:
    """Return the form of a key in JSON."""
    return {
        "name": view.name,
        "allow": view.allow,
        "created_at": _iso(view.created_ms),
        "expires_at": _iso(view.expires_ms),
        "used_at": _iso(view.used_ms),
    }


def _iso(unix_ms: int) -> str | None:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat() if unix_ms else None


def _date(unix_ms: int) -> str:
    return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M}" if unix_ms else "never"

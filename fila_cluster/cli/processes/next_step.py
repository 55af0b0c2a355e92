"""``fila-cluster`` without a command: what to do next, with the broker that runs or without one."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fila_cluster.cli.processes.welcome import command_line, next_commands
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.tables import table
from fila_cluster.client.checks import endpoint_or_default
from fila_cluster.errors import FilaError, InvalidConfigError, RequestTimeoutError
from fila_cluster.figures import counted
from fila_cluster.run.asking import ask_dashboard, dashboard_url
from fila_cluster.run.config.loading import load

if TYPE_CHECKING:
    from fila_cluster import ClusterStatus

ANSWER_S_MAX: Final = 1.0
"""How long a broker may take that runs: people wait for this."""


def suggest(invocation: Invocation) -> None:
    """Look whether a broker answers, and print what to do next."""
    endpoint = endpoint_or_default(invocation.endpoint or None)
    try:
        with invocation.connect(timeout=ANSWER_S_MAX) as client:
            status = client.cluster_status()
    except RequestTimeoutError:
        found, steps = f"No broker answers at {endpoint}.", _without_broker()
    except FilaError as error:
        found, steps = f"A broker at {endpoint} refuses: {error}", [(command_line(endpoint, "doctor"), "see what to do")]
    else:
        found, steps = _described(endpoint, status), _with_broker(endpoint)
    steps.append(("fila-cluster --help", "list all commands"))
    rows = table("=try", "to")
    for command, purpose in steps:
        rows.add_row(command, purpose)
    facts = {"endpoint": endpoint, "found": found, "next": [{"command": each, "to": why} for each, why in steps]}
    invocation.show(facts, f"{found}\n", rows)


def _described(endpoint: str, status: "ClusterStatus") -> str:
    workers = counted(len(status.workers), "worker")
    return f"A broker runs at {endpoint}: fila-cluster {status.version}, {workers}, {counted(status.shards, 'shard')}."


def _without_broker() -> list[tuple[str, str]]:
    return [
        ("fila-cluster up", "run a broker in this terminal, with its data in ./fila-data"),
        ("fila-cluster demo", "see in two seconds what a broker does; needs none"),
        ("fila-cluster doctor", "check this machine first"),
    ]


def _with_broker(endpoint: str) -> list[tuple[str, str]]:
    create, enqueue = next_commands(endpoint)
    steps = [(create, "make a queue"), (enqueue, "put a message into it"), (command_line(endpoint, "top"), "watch it live")]
    with suppress(InvalidConfigError):
        settings = load()
        listen, tls = settings.dashboard.listen_addr, settings.http.certificate is not None
        is_ours = endpoint == settings.server.listen_addr.reachable.endpoint
        if is_ours and ask_dashboard(listen, "/healthz", tls=tls) is not None:
            steps.append((dashboard_url(listen, tls=tls), "watch it in a browser"))
    return steps

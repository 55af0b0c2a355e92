"""Start one host of several: its router, its workers and its observer."""

from fila_cluster.run.config.settings import Settings
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.endpoints import Ports, WorkerEndpoint
from fila_cluster.run.supervisor.layout import lay_out
from fila_cluster.run.supervisor.member import check_membership, member, shards_of_cluster, worker_listen
from fila_cluster.run.supervisor.up import Announce, check_addresses, serve


def node(settings: Settings, *, insecure: bool, announce: Announce) -> int:
    """Run a host in the foreground; return the exit code. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    check_membership(settings)
    address = worker_listen(settings)
    worker_endpoint = WorkerEndpoint(address.endpoint, address)
    check_addresses(settings, worker_endpoint, insecure=insecure)
    with Ports() as ports:
        data_dir = DataDir(settings.server.data_dir, of_host=True)
        shards = shards_of_cluster(settings, data_dir)
        layout = lay_out(settings.server.workers, shards, data_dir.shards)
        return serve(settings, worker_endpoint, ports, data_dir, layout, announce, member(settings, data_dir, shards))

"""Whether the cluster serves, for a client: by the router's endpoint for clients, and the dashboard's.

A cluster is ready with a quarantined shard, which only a person can repair. A host of several is ready when its router
answers and its workers have their copies open: the leaders of shards depend on other hosts, too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import zmq

from fila_cluster.run.asking import ask_dashboard
from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.auth import ClusterAuth
from fila_cluster.run.supervisor.layout import Layout
from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import ClusterStatus, GetClusterStatus, Hello, WorkerStatus
from fila_proto_zmq.frames import ERROR, VERSIONS, unpack_header
from fila_proto_zmq.outages import FOLLOWING, NO_QUORUM, OPENING, QUARANTINED

ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class WholeCluster:
    """Every shard has a worker that serves it, or is quarantined."""

    layout: Layout

    def is_met(self, status: ClusterStatus) -> bool:
        """Return whether the router says so."""
        up = [worker for worker in status.workers if worker.state == "up"]
        served = {shard for worker in up for shard in worker.shards}
        quarantined = {outage.shard for worker in up for outage in worker.outages if outage.state == QUARANTINED}
        return len(up) == self.layout.workers and served | quarantined == set(range(self.layout.shards))

    def excuses(self, state: str) -> bool:
        """Return whether it is met although a shard is in this state."""
        return state == QUARANTINED


@dataclass(frozen=True, slots=True)
class OwnWorkers:
    """Each worker of this host serves or follows its shards, by its name; a quarantined shard is excused."""

    shards: Mapping[str, Sequence[int]]

    def is_met(self, status: ClusterStatus) -> bool:
        """Return whether the router says so."""
        up = {worker.name: worker for worker in status.workers if worker.state == "up"}
        return all(name in up and self._is_ready(up[name], shards) for name, shards in self.shards.items())

    @staticmethod
    def _is_ready(worker: WorkerStatus, shards: Sequence[int]) -> bool:
        states = dict.fromkeys(worker.shards, "") | {outage.shard: outage.state for outage in worker.outages}
        return all(states.get(shard, OPENING) in {"", FOLLOWING, NO_QUORUM, QUARANTINED} for shard in shards)

    def excuses(self, state: str) -> bool:
        """Return True: a shard without a leader waits for other hosts."""
        return True


class ReadyProbe:
    """Asks until the router and the ``dashboard`` agree that the expected shards serve. Hardly ever blocks."""

    def __init__(
        self,
        endpoint: str,
        expected: WholeCluster | OwnWorkers,
        dashboard: Address | None = None,
        auth: ClusterAuth | None = None,
        *,
        tls: bool = False,
    ) -> None:
        """``tls``: whether the dashboard is served over TLS."""
        self._tls = tls
        self._expected = expected
        self._greeting = None if auth is None else Hello(list(VERSIONS), api_key=auth.api_key)
        self._dashboard = dashboard
        self._complete = False
        self._asked_at = 0.0
        self._asked = 0
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RECONNECT_IVL, 10)  # the router does not listen yet
        self._socket.set(zmq.IMMEDIATE, 1)
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        if auth is not None:
            self._socket.curve_serverkey = auth.stored.server.public_key.encode()
            self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.connect(endpoint)

    def check(self, now: float) -> bool:
        """Take in answers, and ask again when it is time; return whether the cluster serves. ``now`` is monotonic seconds."""
        while self._socket.poll(0, zmq.POLLIN):
            packed, _, body = self._socket.recv_multipart()
            header = unpack_header(packed)
            if header.opcode == GetClusterStatus.opcode and not header.flags & ERROR:
                self._complete |= self._expected.is_met(decode_body(ClusterStatus, body))
        if self._complete:
            return self._dashboard is None or self._dashboard_agrees(self._dashboard)
        if now >= self._asked_at + ASK_AGAIN_S and self._socket.poll(0, zmq.POLLOUT):
            self._asked_at = now
            self._asked += 1
            if self._greeting is not None:
                self._socket.send_multipart(encode_command(self._greeting, self._asked))
            self._socket.send_multipart(encode_command(GetClusterStatus(), self._asked))
        return False

    def close(self) -> None:
        """Stop asking."""
        self._context.destroy()

    def _dashboard_agrees(self, dashboard: Address) -> bool:
        """Return whether the observer answers there, with the same view of the cluster."""
        answer = ask_dashboard(dashboard, "/readyz", tls=self._tls)
        if answer is None:
            return False
        if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return answer.status == HTTPStatus.OK
        try:
            return all(self._expected.excuses(reason["state"]) for reason in json.loads(answer.body)["reasons"])
        except (ValueError, KeyError):
            return False

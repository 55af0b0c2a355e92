"""Whether the cluster serves, seen as a client sees it: through the router's front door."""

import zmq

from fila_cluster.supervisor.layout import Layout
from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import ClusterStatus, GetClusterStatus
from fila_proto_zmq.frames import ERROR, unpack_header

ASK_AGAIN_S = 0.02


class Readiness:
    """A question that is asked until every shard has a worker that is up. Never blocks."""

    def __init__(self, endpoint: str, layout: Layout) -> None:
        self._layout = layout
        self._asked_at = 0.0
        self._asked = 0
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RECONNECT_IVL, 10)  # the router is not there yet when we begin
        self._socket.set(zmq.IMMEDIATE, 1)
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        self._socket.connect(endpoint)

    def check(self, now: float) -> bool:
        """Take in answers, ask again when it is time to. ``now`` is monotonic seconds."""
        while self._socket.poll(0, zmq.POLLIN):
            header, _, body = self._socket.recv_multipart()
            if not unpack_header(header).flags & ERROR and self._is_complete(decode_body(ClusterStatus, body)):
                return True
        if now >= self._asked_at + ASK_AGAIN_S and self._socket.poll(0, zmq.POLLOUT):
            self._asked_at = now
            self._asked += 1
            self._socket.send_multipart(encode_command(GetClusterStatus(), self._asked))
        return False

    def close(self) -> None:
        """Ask no more."""
        self._context.destroy()

    def _is_complete(self, status: ClusterStatus) -> bool:
        up = [worker for worker in status.workers if worker.state == "up"]
        served = {shard for worker in up for shard in worker.shards}
        return len(up) == self._layout.workers and served == set(range(self._layout.shards))

"""The worker of the testing kit on a real broker, as with ``--fila-endpoint``."""

from celery import Celery, chain
from celery.exceptions import Reject
from kombu import pools

from fila_cluster import Client
from fila_cluster.celery.testing import InlineWorker
from tests.support.cluster.cluster import Cluster, eventually
from tests.support.external.celery import broker_url

NAMESPACE = "inline"
QUEUE = f"{NAMESPACE}/celery"


def double(number: int) -> int:
    if number == 0:
        raise Reject("there is nothing to double", requeue=False)
    return 2 * number


def test_what_is_ready_is_run_and_settled(shared_cluster: Cluster, client: Client) -> None:
    app = Celery("shop", broker=broker_url(shared_cluster, NAMESPACE), backend="cache+memory://", set_as_current=False)
    app.task(name="double", acks_late=True, shared=False)(double)
    try:
        worker = InlineWorker(app)
        results = [app.send_task("double", (number,)) for number in (1, 0)]
        quadrupled = chain(app.signature("double", (3,)), app.signature("double"))()
        app.send_task("double", (1,), countdown=3600)
        assert worker.run_until_idle(client) == 4
        assert (results[0].get(timeout=1), quadrupled.get(timeout=1)) == (2, 12)
        stats = client.queue_stats(QUEUE)
        assert (stats.acked, stats.delayed, client.queue_stats(f"{QUEUE}.dlq").pending) == (3, 1, 1)
        app.send_task("double", (1,), countdown=0.1)
        eventually(lambda: worker.run_until_idle(client) == 1, "it is due")
    finally:
        app.close()
        pools.reset()

"""Show a queue, a few messages of two tenants, fair delivery, a retry and a dead letter.

fila-cluster up                  # in one terminal
python examples/quickstart.py    # in another
"""

from fila_cluster import Client, Message


def main() -> None:
    """Run against the broker that ``FILA_ENDPOINT`` names, or the one on this machine."""
    with Client() as client:
        client.create_queue("quickstart", visibility_timeout=30, max_attempts=2)

        noisy = [Message(b"report %d" % number, fairness_key="noisy") for number in range(5)]
        client.enqueue_many("quickstart", noisy)
        client.enqueue("quickstart", b"invoice", {"kind": "invoice"}, fairness_key="quiet")

        print("served in this order:")
        for delivery in client.receive("quickstart", 10):
            print(f"  {delivery.fairness_key:5} {delivery.text()}")
            if delivery.headers.get("kind") == "invoice":
                delivery.nack("the printer is out of paper")
            else:
                delivery.ack()

        (again,) = client.receive("quickstart", wait=1)
        print(f"again, after {again.attempts} attempt: {again.text()} ({again.error})")
        again.fail("still no paper")

        (dead,) = client.receive("quickstart.dlq", wait=1)
        print(f"dead letter: {dead.text()} ({dead.reason}: {dead.error})")
        dead.ack()
        client.delete_queue("quickstart")


if __name__ == "__main__":
    main()

"""Call a provider that allows 50 calls a second: the broker keeps the limit, so consumers do not have to.

    python examples/rate_limits.py [endpoint]

Consumers of two queues call the same provider. A hook reads provider and tenant from each message's headers, the runtime
config says what the provider allows, and a consumer receives only what may be sent at that moment. The provider refuses one
call all the same (a 429). The consumer defers that message, and with it the broker holds back everything for that provider,
on all workers, for half a second.
"""

import sys
import time
from collections import Counter

from fila_cluster import Client, Message

HOOK = """
function on_enqueue(msg)
  return {
    fairness_key = msg.headers.tenant,
    throttle_keys = { "provider:" .. msg.headers.provider },
    cost = msg.payload_size > 1000 and 2 or 1,      -- large calls count twice
  }
end
"""
QUEUES = ("emails", "reports")
NOISY, QUIET = 60, 6
TOTAL = len(QUEUES) * (NOISY + QUIET)


class Provider:
    """The provider, in this process. It refuses the hundredth call."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.accepted: Counter[int] = Counter()
        """Calls in each half second."""
        self.refused = 0

    def call(self) -> int:
        """Return the HTTP status of a call."""
        if self.accepted.total() == 99 and not self.refused:
            self.refused += 1
            return 429
        self.accepted[int(2 * (time.monotonic() - self.start))] += 1
        return 200


def fill(client: Client) -> None:
    """Make two queues, and put messages of a noisy and a quiet tenant into each."""
    client.set_config("throttle.provider:acme-mail", "50,10")
    for queue in QUEUES:
        client.create_queue(queue, on_enqueue=HOOK)
        noisy = [Message(b"hello", {"tenant": "noisy", "provider": "acme-mail"}) for _ in range(NOISY)]
        quiet = [Message(b"hello", {"tenant": "quiet", "provider": "acme-mail"}) for _ in range(QUIET)]
        client.enqueue_many(queue, noisy + quiet)


def work(client: Client, provider: Provider) -> list[str]:
    """Consume until everything is done. Return the tenants in the order in which they were served."""
    served: list[str] = []
    while len(served) < TOTAL:
        for delivery in client.receive_any(dict.fromkeys(QUEUES, 10), wait=1.0):
            if provider.call() == 429:
                delivery.defer(0.5)
            else:
                served.append(delivery.fairness_key)
                delivery.ack()
    return served


def main(endpoint: str | None = None) -> None:
    """Fill the queues, work until they are empty, and show the calls of each half second."""
    with Client(endpoint) as client:
        fill(client)
        provider = Provider()
        served = work(client, provider)
        for queue in QUEUES:
            client.delete_queue(queue)
    print(
        f"{TOTAL} calls, 50 a second and 10 at once; {provider.refused} was refused, then there were no calls for half a "
        "second"
    )
    for half in range(max(provider.accepted) + 1):
        print(f"{half / 2:4.1f} s  {'█' * provider.accepted[half]} {provider.accepted[half]}")
    last_quiet = len(served) - served[::-1].index("quiet")
    print(f"the quiet tenant's {len(QUEUES) * QUIET} calls were done after {last_quiet} of {TOTAL}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

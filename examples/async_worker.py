"""Work on jobs with asyncio: eight tasks share one connection, and their acks travel together.

fila-cluster up                    # in one terminal
python examples/async_worker.py    # in another
"""

import asyncio

from fila_cluster import AsyncClient, AsyncConsumer, Message

JOBS = 200
TASKS = 8


async def work(deliveries: AsyncConsumer, done: asyncio.Semaphore) -> None:
    """Settle deliveries as they come."""
    async for delivery in deliveries:
        await asyncio.sleep(0.001)  # what a job does
        await delivery.ack()
        done.release()


async def main() -> None:
    """Enqueue jobs of four tenants and wait until they are done."""
    async with AsyncClient() as client:
        await client.create_queue("jobs")
        await client.enqueue_many("jobs", [Message(b"", fairness_key=f"tenant-{job % 4}") for job in range(JOBS)])
        done = asyncio.Semaphore(0)
        async with client.consume("jobs", prefetch=50) as deliveries, asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(deliveries, done)) for _ in range(TASKS)]
            for _ in range(JOBS):
                await done.acquire()
            for task in tasks:
                task.cancel()
        print(f"{JOBS} jobs done, {(await client.queue_stats('jobs')).depth} left")
        await client.delete_queue("jobs")


if __name__ == "__main__":
    asyncio.run(main())

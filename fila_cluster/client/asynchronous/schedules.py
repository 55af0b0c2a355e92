"""The calls about schedules."""

from collections.abc import Mapping
from typing import Any, TypeVar, Unpack

from fila_cluster.client.calls import schedules
from fila_cluster.client.calls.request import Request, Steps
from fila_cluster.client.message import BytesLike, Message, ScheduledOptions
from fila_cluster.client.schedule import Schedule, schedule
from fila_proto_zmq import commands
from fila_proto_zmq.commands import Command

T = TypeVar("T")


class AsyncScheduling:
    """The calls of an :class:`AsyncClient` about schedules."""

    async def put_schedule(
        self,
        name: str,
        queue: str,
        payload: BytesLike = b"",
        headers: Mapping[str, str] | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        timezone: str = "UTC",
        catch_up: str = "once",
        jitter: float = 0.0,
        **options: Unpack[ScheduledOptions],
    ) -> Schedule:
        """Have the broker enqueue a message at each due time: at the times of ``cron``, or ``every`` so many seconds.

        ``cron`` has five fields, or six with the seconds first, and follows ``timezone``. ``every`` is at least a second, and
        counts from now. Each message has the headers ``fila-schedule`` and ``fila-due-at``, and comes up to ``jitter`` seconds
        after its due time. ``catch_up`` says what becomes of due times that passed in an outage of more than 30 seconds: none
        is carried out (``"skip"``), the last one (``"once"``), or each (``"all"``).

        A schedule of this name is replaced. It goes on where it is if its due times are the same, else it begins now. The
        options of the message are those of :meth:`enqueue`, except ``deliver_at``. A queue that does not exist is no error here:
        see :attr:`Schedule.error`.
        """
        request = schedules.put_schedule(
            name,
            queue,
            Message(payload, headers, **options),
            cron=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            jitter=jitter,
        )
        found: commands.ScheduleFound = await self.request(request)
        assert found.schedule is not None, "the answer to a PutSchedule has the schedule"
        return schedule(found.schedule)

    async def get_schedule(self, name: str) -> Schedule | None:
        """Return a schedule with its message; None if there is none of this name."""
        found: commands.ScheduleFound = await self.request(schedules.get_schedule(name))
        return None if found.schedule is None else schedule(found.schedule)

    async def list_schedules(self, prefix: str = "") -> list[Schedule]:
        """Return all schedules whose names start with ``prefix``, by name, without their messages."""
        return [schedule(view) for view in await self._walk(schedules.ListingSchedules(prefix))]

    async def delete_schedule(self, name: str) -> bool:
        """Delete a schedule; return whether there was one. Its messages stay; one that waits because its queue is full is given up."""
        deleted: commands.ScheduleDeleted = await self.request(schedules.delete_schedule(name))
        return deleted.existed

    async def request(self, command: Command | Request) -> Any:
        """Send a command of the protocol, and return its reply."""
        raise NotImplementedError

    async def _walk(self, steps: Steps[T]) -> T:
        raise NotImplementedError

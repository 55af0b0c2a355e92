# Made by .ci/make_blocking.py from fila_cluster/client/asynchronous/schedules.py: edit that, then run `make blocking`.

"""The calls about schedules."""

from collections.abc import Mapping
from typing import Unpack

from fila_cluster.client.blocking.backlogs import Backlogs
from fila_cluster.client.calls.request import Request
from fila_cluster.client.message import BytesLike, Message, ScheduledOptions
from fila_cluster.client.schedule import Schedule, listed_schedules, put_schedule, schedule
from fila_proto_zmq import commands
from fila_proto_zmq.names import check_schedule_name


class Scheduling(Backlogs):
    """The calls of an :class:`Client` about schedules."""

    def put_schedule(
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
        """Make a schedule: the broker enqueues a message at the times of ``cron``, or ``every`` so many seconds.

        A schedule of this name is replaced. If its due times are the same it goes on where it is, else it begins now. Each
        message has the headers ``fila-schedule`` and ``fila-due-at``. Its options are those of :meth:`enqueue`, except
        ``deliver_at``. If the queue does not exist at a due time, :attr:`Schedule.error` shows it.

        Args:
            name: The name of the schedule.
            queue: The queue of the messages. It may be created later.
            payload: The payload of each message.
            headers: The headers of each message.
            cron: Five fields, or six with the seconds first, of which ``timezone`` is the clock.
            every: The time between two due times, 1 second to 366 days, in seconds. It counts from now.
            timezone: A name of the time zone database, for ``cron``.
            catch_up: How many due times are carried out that passed in an outage of more than 30 seconds: ``"skip"`` none,
                ``"once"`` the last one, ``"all"`` each.
            jitter: The most seconds between a due time and its message. The broker chooses them for each due time.
        """
        request = put_schedule(
            name,
            queue,
            Message(payload, headers, **options),
            cron=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            jitter=jitter,
        )
        found: commands.ScheduleFound = self.request(request)
        assert found.schedule is not None, "the answer to a PutSchedule has the schedule"
        return schedule(found.schedule)

    def get_schedule(self, name: str) -> Schedule | None:
        """Return a schedule with its message; None if there is no schedule of this name.

        Args:
            name: The name of the schedule.
        """
        found: commands.ScheduleFound = self.request(Request(check_schedule_name(name), commands.GetSchedule()))
        return None if found.schedule is None else schedule(found.schedule)

    def list_schedules(self, prefix: str = "") -> list[Schedule]:
        """Return all schedules by name, without their messages.

        Args:
            prefix: The first characters of the names.
        """
        return [schedule(view) for view in self._walk(listed_schedules(prefix))]

    def delete_schedule(self, name: str) -> bool:
        """Delete a schedule; return whether there was one.

        Messages that it enqueued stay. A message that waits because its queue is full is given up.

        Args:
            name: The name of the schedule.
        """
        deleted: commands.ScheduleDeleted = self.request(Request(check_schedule_name(name), commands.DeleteSchedule()))
        return deleted.existed

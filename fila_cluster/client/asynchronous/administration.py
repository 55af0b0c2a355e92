"""The calls about queues, their backlogs and the cluster: questions with one answer.

The questions and the meaning of their answers are in :mod:`fila_cluster.client.calls` and :mod:`fila_cluster.client.views`.
"""

from typing import Any, Literal, TypeVar, Unpack

from fila_cluster.client import views
from fila_cluster.client.calls import backlog, cluster, operating, queues, redrive
from fila_cluster.client.calls.explain import Explaining
from fila_cluster.client.calls.request import Request, Steps
from fila_cluster.client.explanation import Explanation
from fila_cluster.client.message import MessageView, State
from fila_proto_zmq import commands
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import FilaError

T = TypeVar("T")


class AsyncAdministration:
    """The calls of an :class:`AsyncClient` about queues, backlogs and the cluster."""

    # --- queues -------------------------------------------------------------------------------------------------------

    async def create_queue(
        self,
        name: str,
        *,
        on_enqueue: str | None = None,
        on_failure: str | None = None,
        visibility_timeout: float | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = "dlq",
        delivery: Literal["at_least_once", "at_most_once"] | None = "at_least_once",
        max_in_flight_per_key: int | None = None,
        default_ttl: float | None = None,
        idle_expiry: float | None = None,
        lua_timeout: float | None = None,
        lua_memory_limit: int | None = None,
    ) -> None:
        """Create a queue, and its dead letter queue ``<name>.dlq``. Raises :class:`QueueExistsError`.

        ``on_enqueue`` and ``on_failure`` are Lua scripts that define a function of that name: how each message is to be
        scheduled, and what follows a nack; :class:`LuaCompilationError` if one does not compile. ``lua_timeout`` and
        ``lua_memory_limit`` (bytes) bound one run of them.
        ``visibility_timeout`` is how long a delivery is leased. After ``max_attempts`` deliveries (None: never) a message is
        dead-lettered: into ``<name>.dlq``, or the queue that ``dead_letter`` names, or nowhere with ``"discard"``.
        ``delivery="at_most_once"`` removes messages when they are delivered: there is nothing to settle, and no retry.
        ``max_in_flight_per_key`` bounds how many of a fairness key's messages are leased or waiting for a retry at a time; 1
        keeps each key in strict order. ``default_ttl`` is how long a message may wait for its delivery; ``idle_expiry`` after
        how long without messages, consumers and calls the queue is deleted.
        """
        options = queues.QueueOptions(
            on_enqueue=on_enqueue,
            on_failure=on_failure,
            visibility_timeout=visibility_timeout,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            delivery=delivery,
            max_in_flight_per_key=max_in_flight_per_key,
            default_ttl=default_ttl,
            idle_expiry=idle_expiry,
            lua_timeout=lua_timeout,
            lua_memory_limit=lua_memory_limit,
        )
        await self.request(queues.create_queue(name, options))

    async def update_queue(self, name: str, **options: Unpack[queues.QueueOptions]) -> None:
        """Change some of the options of :meth:`create_queue`, from now on; None: back to the default.

        The others stay. An option that does not exist is a :class:`TypeError`.
        """
        await self.request(queues.update_queue(name, options))

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete a queue with its messages. :class:`DeadLetterQueueNotEmptyError` while it has dead letters, unless
        ``force``."""
        await self.request(queues.delete_queue(name, force))

    async def put_template(self, pattern: str, **options: Unpack[queues.QueueOptions]) -> None:
        """Set the options of queues that the first enqueue creates: those whose names match ``pattern``.

        A pattern is a queue's name, or the beginning of names and ``*``; of several that match, the longest holds. The options are
        those of :meth:`create_queue`, and replace all of an earlier template. Queues that exist stay as they are. Every later enqueue,
        anywhere, sees it. :class:`LuaCompilationError` if a script does not compile.
        """
        await self.request(queues.put_template(pattern, options))

    async def get_template(self, pattern: str) -> queues.QueueOptions | None:
        """Return the options of a template that are not the defaults; None if there is no template of that pattern."""
        found: commands.TemplateList = await self.request(queues.get_template(pattern))
        return queues.decode(found.templates[0].options) if found.templates else None

    async def list_templates(self, prefix: str = "") -> dict[str, queues.QueueOptions]:
        """Return the templates whose patterns start with ``prefix``, in their order, each as :meth:`get_template` does."""
        return {each.pattern: queues.decode(each.options) for each in await self._walk(queues.Templates(prefix))}

    async def delete_template(self, pattern: str) -> bool:
        """Delete a template, and return whether there was one. The queues that it made stay."""
        change: commands.ConfigChange = await self.request(queues.delete_template(pattern))
        return change.existed

    async def list_queues(self, prefix: str = "") -> list[views.QueueInfo]:
        """Return all queues whose names start with ``prefix``, dead letter queues included, by name."""
        return views.queue_infos(await self._walk(queues.Listing(prefix)))

    async def active_queues(self, prefix: str = "") -> list[views.QueueInfo]:
        """Return the queues of :meth:`list_queues` that have messages."""
        return views.queue_infos(await self._walk(queues.Listing(prefix, active=True)))

    async def queue_stats(self, name: str) -> views.QueueStats:
        """Return a queue's counters, its fairness keys and the token buckets that its messages draw on.

        The timeout counts for each few thousand keys.
        """
        return views.queue_stats(await self._walk(queues.Counting(name)))

    async def pause(self, name: str, *, fairness_key: str | None = None) -> None:
        """Stop new deliveries of a queue, or of one of its fairness keys. Enqueues go on; a pause survives a restart."""
        await self.request(queues.pause(name, fairness_key, paused=True))

    async def resume(self, name: str, *, fairness_key: str | None = None) -> None:
        """End a pause of a queue, or of one of its fairness keys."""
        await self.request(queues.pause(name, fairness_key, paused=False))

    # --- a backlog ----------------------------------------------------------------------------------------------------

    async def browse(
        self,
        queue: str,
        *,
        limit: int = 100,
        after: str | None = None,
        fairness_key: str | None = None,
        state: State | None = None,
    ) -> list[MessageView]:
        """Look at up to ``limit`` messages without leasing them, key by key and in line order.

        ``after`` is the id of the last one seen; ``state`` is ``"pending"``, ``"delayed"`` or ``"leased"`` (None: all). The
        timeout counts for each thousand.
        """
        return await self._walk(backlog.Browsing(queue, limit, after, fairness_key, state))

    async def cancel(self, queue: str, message_id: str) -> bool:
        """Remove a pending or delayed message: True; False if it is leased. :class:`MessageNotFoundError` if it is gone."""
        cancelled: commands.Cancelled = await self.request(backlog.cancel(queue, message_id))
        return cancelled.removed

    async def purge_queue(self, name: str, *, fairness_key: str | None = None) -> int:
        """Remove the pending and delayed messages of a queue, or of one fairness key; return how many. Leased ones stay.

        The timeout counts for each of its steps.
        """
        return await self._walk(backlog.Purging(name, fairness_key))

    async def redrive(self, dlq: str, count: int = 0, *, fairness_key: str | None = None) -> int:
        """Send up to ``count`` pending dead letters (0: all) back to the queues they came from; return how many.

        The timeout counts for each thousand.
        """
        return await self._walk(redrive.Redriving(dlq, count, fairness_key))

    async def why(self, queue: str, *, message_id: str | None = None, fairness_key: str | None = None) -> Explanation:
        """Return why a message, a fairness key or, if neither is named, the queue waits.

        The reason that has to end first comes first.

        A queue's shard that is down is an explanation, too, and comes at once. A message that is neither in the queue nor
        among its dead letters is a :class:`MessageNotFoundError`. The timeout counts for each of at most three questions.
        """
        explaining = Explaining(queue, message_id, fairness_key)
        while (request := explaining.next_request()) is not None:
            try:
                reply = await self.request(request)
            except FilaError as error:
                explaining.refused(error)
            else:
                explaining.answered(reply)
        return explaining.result

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def cluster_status(self) -> views.ClusterStatus:
        """Return the cluster's workers as the router sees them."""
        return views.cluster_status(await self.request(cluster.cluster_status()))

    async def hosts(self) -> views.HostList:
        """Return which host leads and follows which shard, and how far each copy is.

        A cluster without a replicated log has no hosts: ``workers`` and ``silent`` are empty.
        """
        return views.hosts(await self.request(cluster.hosts()))

    async def set_config(self, key: str, value: str) -> None:
        """Set a key for the whole cluster, durably: every later enqueue, anywhere, sees it.

        ``throttle:<key>:rate`` and ``throttle:<key>:burst`` set a token bucket, in tokens a second and in tokens. A
        bad value raises :class:`InvalidConfigError`, and the old one stays.
        """
        await self.request(cluster.set_config(key, value))

    async def get_config(self, key: str) -> str | None:
        """Return a key's value; None if it has none."""
        found: commands.ConfigValues = await self.request(cluster.get_config(key))
        return next(iter(found.values.values()), None)

    async def list_config(self, prefix: str = "") -> dict[str, str]:
        """Return the keys that start with ``prefix``, with their values, in the order of the keys."""
        found: commands.ConfigValues = await self.request(cluster.list_config(prefix))
        return dict(sorted(found.values.items()))

    async def delete_config(self, key: str) -> bool:
        """Delete a key; return whether it had a value."""
        change: commands.ConfigChange = await self.request(cluster.delete_config(key))
        return change.existed

    async def config_history(
        self, key: str | None = None, *, limit: int = 100, before: int | None = None
    ) -> list[views.ConfigEdit]:
        """Return the changes of the runtime config, or of one key, the latest first. ``before``: only earlier versions.

        The broker remembers the latest thousand, fewer if their values are large.
        """
        return views.config_edits(await self._walk(operating.ConfigHistory(key, limit, before)))

    async def undo_config(self, version: int, *, force: bool = False) -> None:
        """Set the key that ``version`` changed back to its value before, as a new version.

        :class:`InvalidConfigError` if the key was changed since, unless ``force``, or if that version is not remembered.
        """
        await self.request(operating.undo_config(version, force))

    # --- operation ----------------------------------------------------------------------------------------------------

    async def audit(self, limit: int = 100) -> list[views.Act]:
        """Return the latest administrative acts, at most 1,000, the latest first. A new router knows none; the log has all."""
        return views.acts(await self.request(operating.audit(limit)))

    async def connections(self, *, limit: int = 1000) -> list[views.Connection]:
        """Return the clients that are connected, by name. The timeout counts for each five hundred."""
        return views.connections(await self._walk(operating.Connections(limit)))

    async def close_connection(self, client: str) -> None:
        """End the session of a client that :meth:`connections` names.

        What is leased to it goes back at once, without a failed attempt, and nothing more is delivered to it. It may connect anew:
        revoke its API key first to keep it out.
        """
        await self.request(operating.close_connection(client))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def request(self, command: Command | Request) -> Any:
        """Send a command of the protocol, and return its reply."""
        raise NotImplementedError

    async def _walk(self, steps: Steps[T]) -> T:
        while (request := steps.next_request()) is not None:
            steps.answered(await self.request(request))
        return steps.result

"""The calls about queues, their backlogs and the cluster: questions with one answer.

The questions and the meaning of their answers are in :mod:`fila_cluster.client.calls` and :mod:`fila_cluster.client.views`.
"""

from contextlib import suppress
from types import EllipsisType
from typing import Any, Literal, TypeVar, Unpack

from fila_cluster.client import checks, views
from fila_cluster.client.calls import cluster, queues
from fila_cluster.client.calls.request import Request, Steps
from fila_proto_zmq import commands
from fila_proto_zmq.errors import FilaError, PartitionedError, QueueExistsError, QueueNotFoundError
from fila_proto_zmq.limits import ACTS_LISTED_MAX
from fila_proto_zmq.names import check_pattern
from fila_proto_zmq.runtime_config import THROTTLE_LIMITS

T = TypeVar("T")


class AsyncAdministration:
    """The calls of an :class:`AsyncClient` about queues and the cluster."""

    async def create_queue(
        self,
        name: str,
        *,
        visibility_timeout: float | None = None,
        max_attempts: int | None = None,
        on_enqueue: str | None = None,
        on_failure: str | None = None,
        dead_letter: str | None = "dlq",
        delivery: Literal["at_least_once", "at_most_once"] | None = "at_least_once",
        max_in_flight_per_key: int | None = None,
        default_ttl: float | None = None,
        idle_expiry: float | None = None,
        lua_timeout: float | None = None,
        lua_memory_limit: int | None = None,
        max_in_flight: int | None = None,
        partitions: int | Literal["auto"] | None = 1,
        spread: Literal["key", "message"] | None = "key",
    ) -> None:
        """Create a queue, and its dead letter queue ``<name>.dlq``. An option that is None has the broker's default.

        ``on_enqueue`` and ``on_failure`` are Lua scripts that define a function of that name. After ``max_attempts``
        deliveries a message is dead-lettered: into ``<name>.dlq``, or the queue that ``dead_letter`` names, or nowhere with
        ``"discard"``. ``delivery="at_most_once"`` removes messages when they are delivered: there is nothing to settle, and
        no retry.

        Args:
            name: The name: 1 to 200 bytes of letters, digits, ``.``, ``_`` and ``-``, or ``namespace/queue`` of such parts.

        Raises:
            QueueExistsError: There is a queue of this name.
            LuaCompilationError: A script does not compile. The text names the line, and no queue is made.
        """
        options = queues.QueueOptions(
            visibility_timeout=visibility_timeout,
            max_attempts=max_attempts,
            on_enqueue=on_enqueue,
            on_failure=on_failure,
            dead_letter=dead_letter,
            delivery=delivery,
            max_in_flight_per_key=max_in_flight_per_key,
            default_ttl=default_ttl,
            idle_expiry=idle_expiry,
            lua_timeout=lua_timeout,
            lua_memory_limit=lua_memory_limit,
            max_in_flight=max_in_flight,
            partitions=partitions,
            spread=spread,
        )
        *asked, create = queues.creation(name, options)
        if not asked:
            await self.request(create)
        else:
            await self._create_partitioned(name, options, asked[0], create)

    async def _create_partitioned(self, name: str, options: queues.QueueOptions, describe: Request, create: Request) -> None:
        with suppress(QueueNotFoundError):
            await self.request(describe)
            raise QueueExistsError(f"queue {name!r} exists already")
        await self._check_dead_letters(options)
        await self.request(create)
        with suppress(FilaError):  # each partition is made when it is named
            await self.request(describe)
        if await self._is_undivided(describe):  # another client has made it meanwhile
            await self.request(commands.DeletePartitioned(name))
            raise QueueExistsError(f"queue {name!r} exists already")

    async def _check_dead_letters(self, options: queues.QueueOptions) -> None:
        """Raise :class:`InvalidArgumentError` if the queue does not exist that is to take the dead letters."""
        if (question := queues.dead_letters_of(options)) is not None:
            try:
                await self.request(question)
            except QueueNotFoundError:
                raise queues.no_dead_letters(options) from None

    async def update_queue(self, name: str, **options: Unpack[queues.QueueOptions]) -> None:
        """Change some of the options of :meth:`create_queue`, for all that happens from now on. The others stay.

        An option that is None goes back to its default. Another number of ``partitions`` holds for new messages at once. Those
        that are in other places than it says move, each once; meanwhile their keys may deliver nothing.

        Args:
            name: The queue.

        Raises:
            QueueNotFoundError: There is no such queue.
            LuaCompilationError: A script does not compile. The queue keeps its options.
            OverloadedError: Messages still move to the number of partitions that was set before.
            TypeError: There is no option of this name.
        """
        update = Request(queue := checks.queue_name(name), commands.UpdateQueue(*queues.encode(options)))
        try:
            await self.request(update)
        except PartitionedError as refusal:
            try:
                await self.request(queues.first_partitions(queue, refusal))
            except QueueExistsError:  # another client has given it partitions meanwhile
                await self.request(update)

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete a queue with its messages, and its dead letter queue.

        Args:
            name: The queue.
            force: Whether to delete it also if it has dead letters.

        Raises:
            QueueNotFoundError: There is no such queue.
            DeadLetterQueueNotEmptyError: It has dead letters, and ``force`` is not set.
        """
        await self.request(Request(checks.queue_name(name), commands.DeleteQueue(bool(force))))

    async def put_template(self, pattern: str, **options: Unpack[queues.QueueOptions]) -> None:
        """Set the options of queues that the first enqueue creates: those whose names match ``pattern``.

        The options are those of :meth:`create_queue`, and replace all options of an earlier template of this pattern.
        Queues that exist stay as they are. Every later enqueue, anywhere, sees the template.

        Args:
            pattern: A queue's name, or the beginning of names and ``*``. Of several patterns that match, the longest holds.

        Raises:
            LuaCompilationError: A script does not compile. The earlier template stays.
            TypeError: There is no option of this name.
        """
        await self.request(commands.PutTemplate(check_pattern(pattern), queues.encode(options)[0]))

    async def get_template(self, pattern: str) -> queues.QueueOptions | None:
        """Return the options of a template that are not the defaults; None if there is no template of this pattern.

        Args:
            pattern: The pattern, as it was put.
        """
        found: commands.TemplateList = await self.request(commands.GetTemplate(check_pattern(pattern)))
        return queues.decode(found.templates[0].options) if found.templates else None

    async def list_templates(self, prefix: str = "") -> dict[str, queues.QueueOptions]:
        """Return the templates by their patterns, sorted, each as :meth:`get_template` returns it.

        Args:
            prefix: The first characters of the patterns.
        """
        return {each.pattern: queues.decode(each.options) for each in await self._walk(queues.listed_templates(prefix))}

    async def delete_template(self, pattern: str) -> bool:
        """Delete a template, and return whether there was one. The queues that it made stay.

        Args:
            pattern: The pattern, as it was put.
        """
        change: commands.ConfigChange = await self.request(commands.DeleteTemplate(check_pattern(pattern)))
        return change.existed

    async def list_queues(self, prefix: str = "") -> list[views.QueueInfo]:
        """Return all queues by name, dead letter queues included.

        Args:
            prefix: The first characters of the names.
        """
        return views.queue_infos(await self._walk(queues.ListingQueues(prefix)))

    async def active_queues(self, prefix: str = "") -> list[views.QueueInfo]:
        """Return the queues of :meth:`list_queues` that have messages.

        Args:
            prefix: The first characters of the names.
        """
        return views.queue_infos(await self._walk(queues.ListingQueues(prefix, active=True)))

    async def queue_stats(self, name: str) -> views.QueueStats:
        """Return a queue's counters, its fairness keys, and the token buckets that its messages draw on.

        The client's timeout counts anew for each few thousand keys.

        Args:
            name: The queue.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        return views.queue_stats(await self._walk(queues.Counting(name)))

    async def pause(self, name: str, *, fairness_key: str | None = None) -> None:
        """Stop new deliveries of a queue, or of one of its fairness keys.

        It still takes messages, and leased messages may be settled. A pause survives a restart.

        Args:
            name: The queue.
            fairness_key: The key; None: the whole queue.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        pause = commands.Pause(True, checks.only_fairness_key(fairness_key))
        await self.request(Request(checks.queue_name(name), pause))

    async def resume(self, name: str, *, fairness_key: str | None = None) -> None:
        """End a pause of a queue, or of one of its fairness keys.

        Args:
            name: The queue.
            fairness_key: The key; None: the whole queue.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        resume = commands.Pause(False, checks.only_fairness_key(fairness_key))
        await self.request(Request(checks.queue_name(name), resume))

    async def cluster_status(self) -> views.ClusterStatus:
        """Return the cluster's workers as the router sees them."""
        return views.cluster_status(await self.request(commands.GetClusterStatus()))

    async def hosts(self) -> views.HostList:
        """Return which host leads and follows which shard, and how far each copy is.

        A cluster without a replicated log has no hosts: ``workers`` and ``silent`` are empty.
        """
        return views.hosts(await self.request(commands.GetHosts()))

    async def set_config(self, key: str, value: str) -> None:
        """Set a key of the runtime config for the whole cluster, durably. Every later enqueue, anywhere, sees it.

        ``throttle:<key>:rate`` and ``throttle:<key>:burst`` set a token bucket, in tokens a second and in tokens.
        ``throttle:<key>:concurrency`` sets how many messages with the key may be leased at a time.

        Args:
            key: The key, at most 512 bytes.
            value: The value, at most 64 KiB.

        Raises:
            InvalidConfigError: The key or the value is not acceptable. The old value stays.
        """
        text = checks.plain_text("value", value, "for example str(value)")
        await self.request(commands.SetConfig(checks.config_key(key), text))

    async def get_config(self, key: str) -> str | None:
        """Return the value of a key of the runtime config; None if it has none.

        Args:
            key: The key.
        """
        found: commands.ConfigValues = await self.request(commands.GetConfig(checks.config_key(key)))
        return next(iter(found.values.values()), None)

    async def list_config(self, prefix: str = "") -> dict[str, str]:
        """Return the values of the runtime config by their keys, sorted.

        Args:
            prefix: The first characters of the keys.
        """
        text = checks.plain_text("prefix", prefix, "the first characters of the keys to list")
        found: commands.ConfigValues = await self.request(commands.ListConfig(text))
        return dict(sorted(found.values.items()))

    async def delete_config(self, key: str) -> bool:
        """Delete a key of the runtime config; return whether it had a value.

        Args:
            key: The key.
        """
        change: commands.ConfigChange = await self.request(commands.SetConfig(checks.config_key(key), None))
        return change.existed

    async def config_history(
        self, key: str | None = None, *, limit: int = 100, before: int | None = None
    ) -> list[views.ConfigVersion]:
        """Return the changes of the runtime config, the latest first.

        The broker keeps the latest thousand, fewer if their values are large.

        Args:
            key: Only changes of this key; None: of all keys.
            limit: The most changes to return.
            before: Only changes before this version; None: up to the latest.
        """
        return views.config_edits(await self._walk(cluster.config_history(key, limit, before)))

    async def undo_config(self, version: int, *, force: bool = False) -> None:
        """Set the key that a version changed back to its value before, as a new version.

        Args:
            version: The number of the version.
            force: Whether to do it also if the key was changed since.

        Raises:
            InvalidConfigError: The key was changed since, and ``force`` is not set; or the broker does not keep that
                version.
        """
        number = checks.whole_number("version", version, 1, 2**63 - 1)
        await self.request(commands.UndoConfig(number, bool(force)))

    # --- throttles ----------------------------------------------------------------------------------------------------

    async def set_throttle(
        self,
        key: str,
        *,
        rate: float | EllipsisType | None = ...,
        burst: float | EllipsisType | None = ...,
        concurrency: int | EllipsisType | None = ...,
        rate_min: float | EllipsisType | None = ...,
    ) -> None:
        """Set limits of a throttle key for the whole cluster: the given ones; the others stay.

        They are the keys ``throttle:<key>:rate`` and so on of the runtime config, set one after another. A limit that is None
        is deleted.

        Args:
            key: The throttle key; or the beginning of keys and ``*``, for each of them without limits of its own.
            rate: Tokens that come into its bucket a second.
            burst: Tokens that the bucket can hold. Without it: the rate, at least 1.
            concurrency: Messages with this key that may be leased together.
            rate_min: The least to which deferrals lower the rate, tokens a second.

        Raises:
            InvalidConfigError: The key or a value is not acceptable. No limit was changed.
        """
        # The burst first: a bucket begins with its rate, and is full then.
        given = {"burst": burst, "rate": rate, "concurrency": concurrency, "rate_min": rate_min}
        for change in cluster.throttle_changes(key, given):
            await self.request(change)

    async def list_throttles(self, prefix: str = "") -> list[views.ThrottleStats]:
        """Return the throttle keys that have limits, by name, with what waits for them in the whole cluster.

        They are those with entries of their own, patterns among them, and those that messages have and a pattern limits.

        Args:
            prefix: The first characters of the throttle keys.
        """
        return views.throttles(await self._walk(cluster.ListingThrottles(prefix)))

    async def delete_throttle(self, key: str) -> bool:
        """Delete all limits of a throttle key; return whether it had any. The messages that wait for them go on.

        Args:
            key: The throttle key.
        """
        existed = False
        for change in cluster.throttle_changes(key, dict.fromkeys(THROTTLE_LIMITS)):
            made: commands.ConfigChange = await self.request(change)
            existed |= made.existed
        return existed

    # --- operation ----------------------------------------------------------------------------------------------------

    async def audit(self, limit: int = 100) -> list[views.AuditEntry]:
        """Return the latest administrative acts, the latest first. They are those since the router started; its log has
        all.

        Args:
            limit: The most acts to return, up to 1,000.
        """
        count = checks.whole_number("limit", limit, 1, ACTS_LISTED_MAX)
        return views.acts(await self.request(commands.ListActs(count)))

    async def connections(self, *, limit: int = 1000) -> list[views.ConnectionInfo]:
        """Return the clients that are connected, by name. The client's timeout counts anew for each five hundred.

        Args:
            limit: The most clients to return.
        """
        return views.connections(await self._walk(cluster.listed_connections(limit)))

    async def close_connection(self, client: str) -> None:
        """End the session of a client.

        The messages that are leased to it go back at once, without a failed attempt, and it gets no more. It may connect
        anew: revoke its API key first to keep it out.

        Args:
            client: Its name, as :meth:`connections` returns it.

        Raises:
            InvalidArgumentError: There is no such client, or it is the one that asks.
        """
        name = checks.plain_text("client", client, "a name that connections() shows")
        await self.request(commands.CloseConnection(name))

    async def request(self, command: commands.Command | Request) -> Any:
        """Send a command of the protocol, and return its reply."""
        raise NotImplementedError

    async def _is_undivided(self, describe: Request) -> bool:
        raise NotImplementedError

    async def _walk(self, steps: Steps[T]) -> T:
        while (request := steps.next_request()) is not None:
            steps.answered(await self.request(request))
        return steps.result

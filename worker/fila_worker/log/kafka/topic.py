"""The topic of a cluster's log: made if it is missing, else checked.

Confirmed records depend on each setting, so a wrong one is an error. It is never changed here: the topic may have another
user.
"""

from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar

from fila_worker.core.store import UnfitStoreError
from fila_worker.log.kafka.clients import Trouble, admin, kafka, new_admin, text_of
from fila_worker.log.kafka.copies import log_name
from fila_worker.log.kafka.settings import KafkaSettings

LOOK_S: Final = 0.1
"""How long to wait before looking again whether all brokers have a new topic."""
QUESTION_S_MAX: Final = 3.0
"""How long to wait for one answer before asking again. A broker may still carry out the first request; then it is found."""
AFRESH: Final = "stop all hosts, and start each with an empty data directory, but for auth (docs/hosts.md)"
GONE: Final = (
    "it is missing, and it had what this host's copies follow, so it is not made again. If it is lost for good, begin "
    f"afresh: {AFRESH}"
)
_NO_ANSWER: Final = frozenset(
    {
        kafka.KafkaError._TIMED_OUT,
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError._RESOLVE,
        kafka.KafkaError._TIMED_OUT_QUEUE,
        kafka.KafkaError.REQUEST_TIMED_OUT,
        kafka.KafkaError.NOT_CONTROLLER,
        kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        kafka.KafkaError.BROKER_NOT_AVAILABLE,
        kafka.KafkaError.NETWORK_EXCEPTION,
    }
)
_NOT_KNOWN_YET: Final = _NO_ANSWER | {kafka.KafkaError.UNKNOWN_TOPIC_OR_PART}
"""Some broker has the topic. Another one that was just started may not have it yet."""

_Answer = TypeVar("_Answer")


class TopicError(UnfitStoreError):
    """The topic can't keep a log. ``details`` has, for each wrong setting, what was found and what is wanted."""


class _Wanted(NamedTuple):
    value: str
    at_least: bool = False

    @property
    def text(self) -> str:
        return f"{self.value} or more" if self.at_least else self.value

    def fits(self, found: str) -> bool:
        return found == self.value or (self.at_least and found.isdecimal() and int(found) >= int(self.value))


def _configs(settings: KafkaSettings) -> dict[str, _Wanted]:
    return {
        "cleanup.policy": _Wanted("delete"),
        # By default Kafka forgets records after seven days. Here only checkpoints let it.
        "retention.ms": _Wanted("-1"),
        "retention.bytes": _Wanted("-1"),
        # A broker that was behind must not lead: it would take back what was confirmed.
        "unclean.leader.election.enable": _Wanted("false"),
        "min.insync.replicas": _Wanted(str(settings.in_sync), at_least=True),
        # By CreateTime a broker refuses the records of a host whose clock is an hour ahead of its own.
        "message.timestamp.type": _Wanted("LogAppendTime"),
        "max.message.bytes": _Wanted(str(settings.record_bytes_max), at_least=True),
    }


def refuse_other_log(topic: str, wanted: str, found: str) -> None:
    """Raise :class:`TopicError` if a topic is another log than is wanted. Empty names are not known, and fit."""
    if wanted and found and found != wanted:
        raise TopicError(
            f"the topic {topic} is the log {found}, and this host's copies are of {wanted}: the topic was deleted and made "
            "again, or [replication] log or cluster names that of another cluster. Correct the setting; or begin afresh, "
            f"without what the copies have: {AFRESH}",
            details={"found": found, "wanted": wanted},
        )


def prepare_topic(settings: KafkaSettings, log: str = "") -> str:
    """Make or check the topic, and return the name of its log. Waits for the brokers; raises :class:`TopicError` with all
    faults.

    ``log``: the name of the log that there are copies of. Then the topic must be that log, and is not made again.
    """
    preparation = _Preparation(settings)
    preparation.run(make=not log)
    found = preparation.log()
    refuse_other_log(settings.topic, log, found)
    return found


def find_partitions(settings: KafkaSettings) -> int | None:
    """Return how many partitions the topic has; None: no such topic. Waits for the brokers; raises :class:`TopicError`."""
    return _Preparation(settings).partitions()


def log_of(settings: KafkaSettings) -> str:
    """Return the name of the log that the topic is now, see :func:`log_name`. Raise :class:`TopicError`."""
    return _Preparation(settings).log()


def unsafe_settings(settings: KafkaSettings, entries: Mapping[str, Any]) -> str:
    """Return which settings of the topic are wrong, with the command that corrects them; empty: all are right."""
    wrong = _wrong(
        [(name, str(entries[name].value), wanted) for name, wanted in _configs(settings).items() if name in entries]
    )
    if not wrong:
        return ""
    listed = "; ".join(f"{name} is {found}, wanted {wanted.text}" for name, found, wanted in wrong)
    (advice,) = _advice(settings, {name: wanted for name, _, wanted in wrong}, 0)
    return settings.without_secrets(f"the topic {settings.topic} has unsafe settings: {listed}. {advice}")


def _wrong(checked: "list[tuple[str, str, _Wanted]]") -> "list[tuple[str, str, _Wanted]]":
    return [(name, found, wanted) for name, found, wanted in checked if not wanted.fits(found)]


class _Preparation:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._trouble = Trouble(settings)
        self._admin = new_admin(settings, self._trouble.take)
        self._give_up_at = monotonic() + settings.admin_ms_max / 1000

    def run(self, *, make: bool = True) -> None:
        try:
            topic = self._look()
            if topic is None and make:
                self._create()
            while topic is None:
                self._wait("the new topic is not known to all brokers" if make else GONE)
                topic = self._look()
            self._check(topic)
        except kafka.KafkaException as error:
            raise self._refused(text_of(error)) from None

    def partitions(self) -> int | None:
        try:
            topic = self._look()
        except kafka.KafkaException as error:
            raise self._refused(text_of(error)) from None
        return None if topic is None else len(topic.partitions)

    def log(self) -> str:
        topics = kafka.TopicCollection([self._settings.topic])
        try:
            topic = self._ask(
                lambda rest_s: _only(self._admin.describe_topics(topics, request_timeout=rest_s)).result(rest_s),
                _NOT_KNOWN_YET,
            )
        except kafka.KafkaException as error:
            raise self._refused(text_of(error)) from None
        if name := log_name(self._settings.topic, topic):
            return name
        raise self._refused(
            "the brokers give topics no ids, which distinguish one that is made again: use Kafka 2.8 or later"
        )

    def _look(self) -> admin.TopicMetadata | None:
        """Return the topic; None if there is none, or if one of its partitions has no leader yet."""
        name = self._settings.topic
        topic = self._ask(lambda rest_s: self._admin.list_topics(name, timeout=rest_s)).topics[name]
        error = topic.error
        if error is None:
            return topic
        if error.code() in {kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError.LEADER_NOT_AVAILABLE}:
            return None
        raise self._refused(text_of(error))

    def _create(self) -> None:
        settings = self._settings
        configs = {name: wanted.value for name, wanted in _configs(settings).items()}
        new = admin.NewTopic(settings.topic, settings.partitions, settings.replicas, config=configs)
        try:
            self._ask(lambda rest_s: _only(self._admin.create_topics([new], request_timeout=rest_s)).result(rest_s))
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                return  # another host was faster
            if code == kafka.KafkaError.INVALID_REPLICATION_FACTOR:
                advice = f"start {settings.replicas} brokers, or set replicas = 1 if a lost broker may be a lost log"
                raise self._refused(f"{text_of(error)}: {advice}") from None
            raise

    def _check(self, topic: admin.TopicMetadata) -> None:
        settings = self._settings
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, settings.topic)
        entries: dict[str, Any] = self._ask(
            lambda rest_s: _only(self._admin.describe_configs([resource], request_timeout=rest_s)).result(rest_s),
            _NOT_KNOWN_YET,
        )
        replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        checked = [
            ("partitions", str(len(topic.partitions)), _Wanted(str(settings.partitions))),
            ("replication factor", str(replicas), _Wanted(str(settings.replicas), at_least=True)),
            *((name, str(entries[name].value), wanted) for name, wanted in _configs(settings).items()),
        ]
        if wrong := _wrong(checked):
            listed = "; ".join(f"{name} is {found}, wanted {wanted.text}" for name, found, wanted in wrong)
            advice = " ".join(_advice(settings, {name: wanted for name, _, wanted in wrong}, replicas))
            details = {name: {"found": found, "wanted": wanted.value} for name, found, wanted in wrong}
            raise TopicError(f"the topic {settings.topic} can't keep a log: {listed}. {advice}", details=details)

    def _ask(self, question: Callable[[float], _Answer], passing: Container[int] = _NO_ANSWER) -> _Answer:
        """Return the answer to a question, which is asked again after errors that are ``passing``."""
        while True:
            try:
                rest_s = self._give_up_at - monotonic()
                return question(max(0.001, min(rest_s, QUESTION_S_MAX)))
            except kafka.KafkaException as error:
                if error.args[0].code() not in passing:
                    raise
                self._wait(text_of(error))
            except TimeoutError:
                self._wait("no answer")

    def _wait(self, problem: str) -> None:
        self._admin.poll(0)  # for the listener
        if self._trouble.refused or monotonic() > self._give_up_at:
            servers = self._settings.bootstrap_servers
            advice = f"are the brokers at {servers} up, and do they let this host in?"
            raise self._refused(f"{problem}{self._trouble.as_reason}; {advice}")
        sleep(LOOK_S)

    def _refused(self, problem: str) -> TopicError:
        problem = self._settings.without_secrets(problem)
        return TopicError(f"the topic {self._settings.topic} can't be made ready: {problem}")


def _only(futures: "dict[Any, Future[_Answer]]") -> "Future[_Answer]":
    (future,) = futures.values()
    return future


def _advice(settings: KafkaSettings, wrong: dict[str, _Wanted], found_replicas: int) -> list[str]:
    """Return what to do, with the commands of Kafka's own tools."""
    at = f"--bootstrap-server {settings.bootstrap_servers}"
    advice = []
    if "partitions" in wrong:
        advice.append("A log with another number of shards needs a topic of its own: give it a name that is not taken.")
    if "replication factor" in wrong:
        advice.append(
            f"To keep more copies, move each partition to {settings.replicas} brokers with kafka-reassign-partitions.sh;"
            f" or set replicas = {found_replicas} if that is enough."
        )
    configs = ",".join(f"{name}={wanted.value}" for name, wanted in wrong.items() if name in _configs(settings))
    if configs:
        advice.append(
            f"Run: kafka-configs.sh {at} --alter --entity-type topics --entity-name {settings.topic} --add-config {configs}"
        )
    return advice


LOOK_MS: Final = 60_000
"""Between two questions."""


class _Found:
    """The faults at the last answer. Answers come in a thread of the client, so this holds no client."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._problem = ""

    def take(self, future: "Future[dict[str, Any]]") -> None:
        """Take an answer. Without one what was found before stays."""
        if future.exception() is None:
            problem = unsafe_settings(self._settings, future.result())
            with self._lock:
                self._problem = problem

    @property
    def problem(self) -> str:
        """The fault, for people; empty: none."""
        with self._lock:
            return self._problem


class TopicWatch:
    """Asks at times. The first time is a span after the start, which checks the topic itself."""

    def __init__(self, settings: KafkaSettings, client: admin.AdminClient, now_ms: Callable[[], int]) -> None:
        """``now_ms``: a steady clock."""
        self._client, self._now_ms = client, now_ms
        self._answer_s_max = settings.answer_ms_max / 1000
        self._resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, settings.topic)
        self._asked_ms = now_ms()
        self._found = _Found(settings)

    def look(self) -> None:
        """Ask, if the last question is old."""
        now_ms = self._now_ms()
        if now_ms >= self._asked_ms + LOOK_MS:
            self._asked_ms = now_ms
            (future,) = self._client.describe_configs([self._resource], request_timeout=self._answer_s_max).values()
            future.add_done_callback(self._found.take)

    @property
    def problem(self) -> str:
        """The fault, for people; empty: none, as far as known."""
        return self._found.problem

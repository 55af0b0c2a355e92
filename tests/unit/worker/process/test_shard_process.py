"""The host: frames to shards and back, whatever is in the frames."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fila_proto_zmq import runtime_config
from fila_proto_zmq.codec import decode_body, encode_body, encode_command
from fila_proto_zmq.commands import (
    BY_OPCODE,
    ApiKey,
    Appoint,
    Appointed,
    ClientsDescribed,
    ClientWork,
    Command,
    ConfigChange,
    ConfigTaken,
    ConfigValues,
    CreateQueue,
    Delivered,
    DescribeClients,
    Done,
    EndClient,
    Enqueue,
    Enqueued,
    Fault,
    FetchKeys,
    GetConfig,
    GetQueueStats,
    GetTemplate,
    Grant,
    Grants,
    ListConfig,
    ListQueues,
    ListTemplates,
    MakeByTemplate,
    MessagesTransferred,
    Park,
    PutConfig,
    PutTemplate,
    QueueList,
    QueueOptions,
    Receive,
    Registered,
    Reply,
    SetConfig,
    Settle,
    StoredKeys,
    StoreKeys,
    Subscribe,
    Template,
    TemplateList,
    Tokens,
    Transfer,
    TransferMessages,
    Verb,
)
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.runtime_config import PARTITIONED, TEMPLATE
from fila_proto_zmq.templates import encode_options
from fila_worker.core.effects import Post
from fila_worker.core.manage import config as shard_config
from fila_worker.core.manage.config import PAGES_WAIT_MS
from fila_worker.core.model.shard_transfers import stream_of
from fila_worker.process import cluster_lists
from fila_worker.process.config_copies import RETURN_MS
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from tests.support.shard.shard_process import CLIENT, HERE, NAMES, SHARDS_TOTAL, HostHarness, answer_of, recovered
from tests.unit.protocol.vectors import BODIES

STREAM = stream_of(1, 2)


@pytest.fixture
def host() -> HostHarness:
    return HostHarness()


@pytest.fixture
def queue(host: HostHarness) -> str:
    host.ask(CreateQueue(QueueOptions()), NAMES[0])
    return NAMES[0]


# --- good frames ------------------------------------------------------------------------------------------------------


def test_a_queue_is_served_by_its_shard(host: HostHarness) -> None:
    for shard in HERE:
        assert host.ask(CreateQueue(QueueOptions()), NAMES[shard]) == Done()
        assert set(host.host.shards[shard].queues) == {NAMES[shard], NAMES[shard] + ".dlq"}
    assert host.host.queues == 3


def test_an_answer_repeats_request_opcode_and_routing_key(host: HostHarness, queue: str) -> None:
    (frame,) = host.exchange([CLIENT, pack_header(12, request=2**63), queue.encode(), encode_body(GetQueueStats())])
    assert frame[:3] == [CLIENT, pack_header(12, request=2**63, flags=REPLY), queue.encode()]


def test_a_push_names_queue_and_subscription_and_no_request(host: HostHarness, queue: str) -> None:
    host.ask(Subscribe(7, 10), queue)
    sent = host.exchange([b"\x02producer", *encode_command(Enqueue([seal_envelope(b"x")]), 1, queue)])
    push = next(frame for frame in sent if frame[0] == CLIENT)
    header = unpack_header(push[1])
    assert (header.opcode, header.flags, header.request, push[2]) == (33, 0, 0, queue.encode())
    delivered = decode_body(Delivered, push[3])
    assert (delivered.subscription, len(delivered.batches[0].records)) == (7, 1)


def test_frames_of_one_turn_see_each_other(host: HostHarness) -> None:
    name = NAMES[2]
    commands = [CreateQueue(QueueOptions()), Enqueue([seal_envelope(b"x")]), Receive(1, 0)]
    frames = [[CLIENT, *encode_command(command, number, name)] for number, command in enumerate(commands)]
    answers = [answer_of(commands[unpack_header(frame[1]).request], unpack_header(frame[1]).request, frame)
               for frame in host.exchange(*frames)]  # fmt: skip
    assert [type(answer) for answer in answers] == [Done, Enqueued, Delivered]


def test_queues_are_listed_over_all_shards_by_name(host: HostHarness) -> None:
    for shard in HERE:
        host.ask(CreateQueue(QueueOptions()), NAMES[shard])
    reply = host.ask(ListQueues(), "")
    assert isinstance(reply, QueueList)
    expected = sorted((name + suffix, shard) for shard, name in NAMES.items() if shard in HERE for suffix in ("", ".dlq"))
    assert [(queue.name, queue.shard) for queue in reply.queues] == expected


def test_the_router_itself_may_ask(host: HostHarness) -> None:
    (frame,) = host.exchange([b"", *encode_command(ListQueues(), 5)])
    assert (frame[0], frame[1]) == (b"", pack_header(13, 5, REPLY))


def test_the_next_timer_is_the_earliest_of_all_shards(host: HostHarness) -> None:
    assert host.host.next_due(host.now_ms) is None
    for shard, delay_ms in zip(HERE, (9_000, 4_000, 6_000), strict=True):
        host.ask(CreateQueue(QueueOptions()), NAMES[shard])
        host.ask(Enqueue([seal_envelope(b"")], delay_ms=delay_ms), NAMES[shard])
    assert host.host.next_due(host.now_ms) == 4_000


# --- clients, for operators --------------------------------------------------------------------------------------------


def work(host: HostHarness, *clients: bytes) -> list[ClientWork]:
    (frame,) = host.exchange([b"", *encode_command(DescribeClients(list(clients)), 5)])
    return decode_body(ClientsDescribed, frame[3]).clients


def test_what_a_client_has_is_summed_up_over_all_shards(host: HostHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in HERE:
        host.ask(CreateQueue(QueueOptions()), NAMES[shard])
        host.exchange([b"\x02producer", *encode_command(Enqueue([seal_envelope(b"x")] * 3), 1, NAMES[shard])])
    assert work(host, CLIENT) == []
    host.ask(Receive(2, 0), NAMES[0])
    host.exchange([CLIENT, *encode_command(Subscribe(1, 1), 50, NAMES[2])])
    host.exchange([CLIENT, *encode_command(Receive(1, 60_000), 51, NAMES[0] + ".dlq")])
    mine = ClientWork(CLIENT, host.now_ms, sorted([NAMES[0] + ".dlq", NAMES[2]]), 2, 3)
    assert work(host, b"stranger", CLIENT) == [mine]
    host.host.last_frame_ms = lambda client: host.now_ms + 1 if client == CLIENT else 7
    assert work(host, b"stranger", CLIENT) == [
        ClientWork(b"stranger", 7, [], 0, 0),
        ClientWork(CLIENT, host.now_ms + 1, mine.consumes, 2, 3),
    ]
    monkeypatch.setattr(cluster_lists, "LEASES_COUNTED_MAX", 1)
    monkeypatch.setattr(cluster_lists, "DEMANDS_LOOKED_AT_MAX", 1)
    (bounded,) = work(host, CLIENT)
    assert (len(bounded.consumes), bounded.unsettled) == (1, 2)


def test_a_client_is_ended_on_every_shard(host: HostHarness) -> None:
    for shard in HERE:
        host.ask(CreateQueue(QueueOptions()), NAMES[shard])
        host.ask(Subscribe(1, 5), NAMES[shard])
    assert [frame for frame in tell(host, EndClient(CLIENT)) if not frame[0]] == []
    host.exchange()
    assert work(host, CLIENT) == []


# --- the cluster's word -----------------------------------------------------------------------------------------------


def versions(host: HostHarness) -> set[int]:
    return {shard.config_version for shard in host.host.shards.values()}


def tell(host: HostHarness, command: Command, request: int = 0) -> list[list[bytes]]:
    """A frame of the router's own."""
    return host.exchange([b"", *encode_command(command, request)])


def test_the_config_is_set_on_shard_0_and_shown_in_both_spellings(host: HostHarness) -> None:
    assert host.ask(SetConfig("throttle.api", "10,20"), "") == ConfigChange(
        1, {"throttle:api:rate": "10", "throttle:api:burst": "20"}, False
    )
    assert host.ask(GetConfig("throttle:api:burst"), "") == ConfigValues({"throttle:api:burst": "20"})
    assert host.ask(GetConfig("throttle.api"), "") == ConfigValues({"throttle.api": "10,20"})
    assert host.ask(GetConfig("nothing"), "") == ConfigValues({})
    assert host.ask(ListConfig("throttle:"), "") == ConfigValues({"throttle:api:burst": "20", "throttle:api:rate": "10"})
    assert host.ask(SetConfig("throttle.api", None), "") == ConfigChange(
        2, {"throttle:api:rate": None, "throttle:api:burst": None}, True
    )
    assert host.ask(ListConfig(), "") == ConfigValues({})


def test_a_config_that_cannot_be_is_refused_and_the_old_one_stays(host: HostHarness) -> None:
    host.ask(SetConfig("throttle:api:rate", "10"), "")
    refusal = host.ask(SetConfig("throttle:api:rate", "nan"), "")
    assert isinstance(refusal, Fault)
    assert (refusal.code, "'nan'" in refusal.text) == ("INVALID_CONFIG", True)
    assert host.ask(GetConfig("throttle:api:rate"), "") == ConfigValues({"throttle:api:rate": "10"})


def test_a_host_without_shard_0_sets_nothing() -> None:
    host = HostHarness(2, 3)
    refusal = host.ask(SetConfig("a", "1"), "")
    assert isinstance(refusal, Fault)
    assert refusal.code == "SHARD_UNAVAILABLE"
    assert host.ask(GetConfig("a"), "") == ConfigValues({})


def test_a_change_that_a_shard_asks_for_goes_to_the_router_unasked(host: HostHarness) -> None:
    host.ask(PutTemplate("t*", QueueOptions(partitions=2)), "")
    (frame,) = tell(host, MakeByTemplate(0, "t1"))
    header = unpack_header(frame[1])
    assert (frame[0], header.opcode, header.request) == (b"", SetConfig.opcode, 0)
    change = decode_body(ConfigChange, frame[3])
    assert (change.version, list(change.changes)) == (2, [PARTITIONED + "t1"])
    assert tell(host, MakeByTemplate(0, "t1")) == [], "it is there"
    assert tell(host, MakeByTemplate(0, "unlike")) == []
    assert tell(HostHarness(2, 3), MakeByTemplate(0, "t1")) == []


def test_templates_are_told_by_any_shard_and_are_no_keys() -> None:
    host = HostHarness()
    options, other = QueueOptions(max_attempts=3), QueueOptions(on_enqueue="x" * 400_000)
    for version, (pattern, each) in enumerate({"a*": options, "b*": other, "c*": other, "d": options}.items(), 1):
        tell(host, PutConfig(version, {f"{TEMPLATE}{pattern}": encode_options(each)}), version)
    assert host.ask(GetTemplate("a*"), "") == TemplateList([Template("a*", options)])
    assert host.ask(GetTemplate("a"), "") == TemplateList([])
    assert host.ask(ListTemplates(), "") == TemplateList(
        [Template("a*", options), Template("b*", other), Template("c*", other)], True
    )
    assert host.ask(ListTemplates("", "c*"), "") == TemplateList([Template("d", options)])
    assert host.ask(ListTemplates("b"), "") == TemplateList([Template("b*", other)])
    assert host.ask(GetConfig(f"{TEMPLATE}a*"), "") == ConfigValues({})
    assert host.ask(ListConfig(), "") == ConfigValues({})


def test_a_change_is_put_on_every_shard_and_confirmed_with_its_request(host: HostHarness) -> None:
    (frame,) = tell(host, PutConfig(3, {"a": "1"}, whole=True), 3)
    assert frame[:2] == [b"", pack_header(PutConfig.opcode, 3, REPLY)]
    assert decode_body(ConfigTaken, frame[3]) == ConfigTaken(list(HERE))
    assert versions(host) == {3}
    tell(host, PutConfig(5, {"b": "2"}, whole=True), 5)
    assert [shard.config for shard in host.host.shards.values()] == [{"b": "2"}] * 3
    tell(host, PutConfig(4, {"a": "3"}), 4)  # late: what is newer stays
    assert host.host.config.values == {"b": "2"}


def test_a_change_whose_predecessor_was_lost_is_not_taken_and_the_shards_register(host: HostHarness) -> None:
    tell(host, PutConfig(1, {"a": "1"}), 1)
    offers = host.host.offers
    (frame,) = tell(host, PutConfig(3, {"c": "3"}), 3)
    assert decode_body(ConfigTaken, frame[3]) == ConfigTaken([])
    assert (versions(host), host.host.config.values) == ({1}, {"a": "1"})
    assert host.host.offers > offers


@pytest.mark.parametrize(("comes_back", "registrations"), [(False, 1), (True, 0)])
def test_a_change_that_does_not_come_back_is_registered(host: HostHarness, comes_back: bool, registrations: int) -> None:
    """The router may never have heard of it. So it gets the whole config, and passes it on."""
    host.ask(SetConfig("a", "1"), "")
    if comes_back:
        tell(host, PutConfig(1, {"a": "1"}), 1)
    offers = host.host.offers
    for _ in range(3):
        host.now_ms += RETURN_MS
        host.exchange()
    assert host.host.offers == offers + registrations


def test_a_put_without_a_change_only_asks_who_has_the_version(host: HostHarness) -> None:
    tell(host, PutConfig(1, {"a": "1"}), 1)
    asked = [decode_body(ConfigTaken, tell(host, PutConfig(version, {}), version)[0][3]) for version in (1, 2)]
    assert asked == [ConfigTaken(list(HERE)), ConfigTaken([])]
    assert versions(host) == {1}


def test_api_keys_are_kept_by_shard_0_version_by_version() -> None:
    host = HostHarness()
    key = ApiKey("shop", "sha256", b"digest", ["produce:*"], 1)
    assert host.host.config.keys_version == 0
    assert told(host, FetchKeys()) == StoredKeys()
    assert told(host, StoreKeys(1, [key])) == Done()
    for version in (0, 1, 3):
        refusal = told(host, StoreKeys(version, []))
        assert isinstance(refusal, Fault)
        assert refusal.code == "INVALID_ARGUMENT"
    assert told(host, FetchKeys()) == StoredKeys(1, [key])
    assert host.host.config.keys_version == 1


def told(host: HostHarness, command: Command) -> Reply | Fault:
    """The answer to a request of the router's own."""
    ((_, header, _, body),) = tell(host, command, 5)
    return decode_body(Fault if unpack_header(header).flags & ERROR else command.reply, body)


def test_api_keys_are_not_kept_where_shard_0_is_not() -> None:
    host = HostHarness(2, 3)
    refusal = told(host, StoreKeys(1, []))
    assert isinstance(refusal, Fault)
    assert refusal.code == "SHARD_UNAVAILABLE"
    assert host.host.config.keys_version == 0


@pytest.mark.parametrize("command", [StoreKeys(1, []), FetchKeys()])
def test_api_keys_are_not_for_clients(host: HostHarness, command: Command) -> None:
    refusal = host.ask(command, "")
    assert isinstance(refusal, Fault)
    assert "not a command for clients" in refusal.text


def test_shards_that_were_apart_are_brought_to_one_config_and_one_set_of_parks() -> None:
    ahead, behind = (recovered(index) for index in (0, 2))
    ahead.put_config(PutConfig(4, {"a": "1"}, whole=True), 0)
    ahead.park({"api": 5_000}, 0)
    behind.put_config(PutConfig(2, {"a": "0", "old": "x"}, whole=True), 0)
    behind.park({"api": 9_000, "sms": 7_000}, 0)
    host = ShardProcess(map(Slot.of, (ahead, behind)), SHARDS_TOTAL, 0)
    assert (host.config.version, host.config.values) == (4, {"a": "1"})
    assert behind.config == {"a": "1"}
    assert ahead.parks() == behind.parks() == host.config.parks() == {"api": 9_000, "sms": 7_000}


def test_a_change_that_was_lost_between_the_owner_and_its_neighbours_reaches_them_with_the_next_registration(
    host: HostHarness,
) -> None:
    host.ask(SetConfig("a", "1"), "")  # the router, which passes it on to all workers, is killed
    assert versions(host) == {0, 1}
    host.host.registered(Registered(), host.now_ms)  # a new router has no other config than this process
    assert versions(host) == {1}


def test_a_whole_config_in_pages_is_put_on_every_shard_a_page_a_turn_and_confirmed_at_the_end(host: HostHarness) -> None:
    pages: list[dict[str, str | None]] = [{"a": "1"}, {"b": "2"}, {"c": "3"}]
    for number, page in enumerate(pages[:2]):
        put = PutConfig(5, page, True, number, more=True)
        host.host.accept([b"", *encode_command(put, 0)], host.now_ms)
        assert host.host.full, "the next one is for the next turn"
        assert host.exchange() == []
        assert not host.host.full
    assert versions(host) == {0}
    (frame,) = tell(host, PutConfig(5, pages[2], True, 2), 5)
    assert frame[:2] == [b"", pack_header(PutConfig.opcode, 5, REPLY)]
    assert versions(host) == {5}
    assert [shard.config for shard in host.host.shards.values()] == [{"a": "1", "b": "2", "c": "3"}] * 3


def test_a_config_whose_page_was_lost_is_registered_again_and_not_confirmed(host: HostHarness) -> None:
    """The router compares what is registered, and sends the whole again."""
    tell(host, PutConfig(5, {"a": "1"}, True, 0, more=True))
    offers = host.host.offers
    assert tell(host, PutConfig(5, {"c": "3"}, True, 2), 5) == []
    assert (host.host.offers, host.host.config.version) == (offers + 1, 0)


def test_a_host_whose_next_page_of_a_config_does_not_come_registers_again(host: HostHarness) -> None:
    tell(host, PutConfig(5, {"a": "1"}, True, 0, more=True), 0)
    offers = host.host.offers
    host.now_ms += PAGES_WAIT_MS
    host.exchange()
    assert host.host.offers == offers + 1
    host.exchange()
    assert host.host.offers == offers + 1
    assert host.host.config.values == {}


def test_a_shard_that_lacks_a_large_config_of_the_others_gets_it_a_page_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "PAGE_KEYS_MAX", 2)
    ahead, behind = (recovered(index) for index in (0, 2))
    entries: dict[str, str | None] = {f"key-{number}": "1" for number in range(9)}
    ahead.put_config(PutConfig(4, entries, whole=True), 0)
    host = ShardProcess(map(Slot.of, (ahead, behind)), SHARDS_TOTAL, 0)
    for _ in range(5):
        assert host.full, "no frame is read that may rely on it"
        assert host.next_due(0) == 0
        assert behind.config == {}
        host.turn(0)
    assert not host.full
    assert (behind.config, behind.config_version) == (entries, 4)


def test_the_config_is_listed_in_steps_and_by_a_host_without_shards_too(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_config, "LISTED_AT_ONCE", 1)
    tell(host, PutConfig(3, {"b": "2", "a": "1", "c": "3"}, whole=True), 3)
    assert host.ask(ListConfig(""), "") == ConfigValues({"a": "1", "b": "2", "c": "3"})
    empty = ShardProcess([], SHARDS_TOTAL, 0)
    empty.accept([CLIENT, *encode_command(ListConfig(""), 1)], 0)
    (effect,) = empty.turn(0)
    assert answer_of(ListConfig(""), 1, [CLIENT, *effect.frames()]) == ConfigValues({})


def test_what_a_registration_brings_is_for_every_shard(host: HostHarness) -> None:
    host.host.registered(Registered(2, {"a": "1"}, {"api": host.now_ms + 1}), host.now_ms)
    assert versions(host) == {2}
    assert {tuple(shard.parks()) for shard in host.host.shards.values()} == {("api",)}
    host.host.registered(Registered(2), host.now_ms)
    assert host.host.config.values == {"a": "1"}


def test_a_park_of_the_router_is_for_every_shard_and_not_sent_again(host: HostHarness) -> None:
    assert tell(host, Park({"api": host.now_ms + 1000})) == []
    assert [shard.parks() for shard in host.host.shards.values()] == [{"api": host.now_ms + 1000}] * 3


def test_a_park_of_a_shard_goes_to_its_neighbours_and_to_the_router(host: HostHarness) -> None:
    park = Park({"api": host.now_ms + 1000})
    host.host.shards[2].effects.append(Post(park))
    assert host.exchange() == [[b"", *encode_command(park, 0)]]
    assert host.host.next_due(host.now_ms) == 0
    assert host.exchange() == []
    assert [shard.parks() for shard in host.host.shards.values()] == [park.parks] * 3


def test_what_a_shard_says_to_another_host_s_goes_to_the_router(host: HostHarness) -> None:
    appoint = Appoint(1, 2, 5, NAMES[1])
    host.host.shards[2].effects.append(Post(appoint))
    assert host.exchange() == [[b"", pack_header(Appoint.opcode), b"", encode_body(appoint)]]
    assert host.host.next_due(host.now_ms) is None


def test_what_a_shard_says_to_its_neighbour_does_not_leave_the_process(host: HostHarness) -> None:
    host.ask(CreateQueue(QueueOptions()), NAMES[0])
    host.host.shards[2].effects.append(Post(Appoint(0, 2, 5, NAMES[0])))
    assert host.exchange() == []
    assert host.host.next_due(host.now_ms) == 0
    assert host.exchange() == []  # the neighbour's answer is on its way back
    assert host.host.next_due(host.now_ms) == 0
    assert host.exchange() == []
    assert host.host.next_due(host.now_ms) is None


def test_what_a_neighbour_cannot_read_is_dropped(host: HostHarness) -> None:
    frame = TransferMessages(0, 2, 1, [], b"no stream", b"")
    host.host.shards[2].effects.append(Post(frame))
    assert host.exchange() == host.exchange() == []
    assert tell(host, TransferMessages(0, 1, 1, [], b"no stream", b"")) == []


def test_a_message_of_a_later_layout_is_refused_and_holds_up_nothing(host: HostHarness) -> None:
    later = Transfer(NAMES[0], "default", 1, [], False, b"\xff")
    (frame,) = tell(host, TransferMessages(0, 1, 7, [later], STREAM, STREAM))
    assert decode_body(MessagesTransferred, frame[3]) == MessagesTransferred(1, 0, 7, [7], STREAM)


def test_another_host_s_shard_is_answered_over_the_router(host: HostHarness) -> None:
    host.ask(CreateQueue(QueueOptions()), NAMES[0])
    answers = tell(host, Appoint(0, 1, 5, NAMES[0])) + tell(host, Appoint(0, 1, 6, "unknown"))
    assert [decode_body(Appointed, frame[3]) for frame in answers] == [Appointed(1, 0, 5, True), Appointed(1, 0, 6, False)]
    assert all(frame[:3] == [b"", pack_header(Appointed.opcode), b""] for frame in answers)


def test_tokens_are_asked_for_spent_and_reported(host: HostHarness) -> None:
    name = NAMES[2]
    tell(host, PutConfig(1, {"throttle:api:rate": "10"}), 1)
    host.ask(CreateQueue(QueueOptions()), name)
    host.ask(Enqueue([seal_envelope(b"x")], throttle_keys=[["api"]]), name)
    (asking,) = host.exchange([CLIENT, *encode_command(Receive(1, 5_000), 9, name)])
    asked = decode_body(Tokens, asking[3])
    assert (asking[:3], asked.shard) == ([b"", pack_header(Tokens.opcode), b""], 2)
    (want,) = asked.wants
    assert (want.keys, want.least, want.consumed) == (["api"], 1_000_000, 0)
    assert tell(host, Grants(3, asked.session, [Grant(["api"], 1_000_000)])) == []  # another shard's
    assert tell(host, Grants(1, asked.session, [Grant(["api"], 1_000_000)])) == []  # nobody's here
    sent = {frame[0]: frame for frame in tell(host, Grants(2, asked.session, [Grant(["api"], 1_000_000)]))}
    assert len(decode_body(Delivered, sent[CLIENT][3]).batches[0].records) == 1
    assert [want.consumed for want in decode_body(Tokens, sent[b""][3]).wants] == [1_000_000]


def test_the_room_on_the_disk_is_every_shard_s(host: HostHarness) -> None:
    host.host.metrics.measured(12_345)
    assert {shard.free_disk_bytes for shard in host.host.shards.values()} == {12_345}


# --- bad frames -------------------------------------------------------------------------------------------------------


def fault(host: HostHarness, opcode: int, key: bytes, body: bytes, version: int = 1) -> Fault:
    (frame,) = host.exchange([CLIENT, pack_header(opcode, 77, version=version), key, body])
    header = unpack_header(frame[1])
    assert (header.opcode, header.flags, header.request) == (opcode, REPLY | ERROR, 77)
    return decode_body(Fault, frame[3])


def test_an_unknown_opcode_is_refused(host: HostHarness, queue: str) -> None:
    refusal = fault(host, 200, queue.encode(), b"\x90")
    assert (refusal.code, "200" in refusal.text) == ("INVALID_FRAME", True)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"garbage", b"\x91", b"\x80", b"\xdd\xff\xff\xff\xff"])
def test_a_garbage_body_is_refused(host: HostHarness, queue: str, body: bytes) -> None:
    assert fault(host, Enqueue.opcode, queue.encode(), body).code == "INVALID_FRAME"


def test_another_version_is_refused_with_those_spoken(host: HostHarness, queue: str) -> None:
    refusal = fault(host, GetQueueStats.opcode, queue.encode(), b"\x90", version=9)
    assert (refusal.code, refusal.details) == ("UNSUPPORTED_VERSION", {"versions": [1]})


def test_a_queue_of_a_shard_that_is_not_here_is_refused_untouched(host: HostHarness) -> None:
    refusal = host.ask(GetQueueStats(), NAMES[1])
    assert isinstance(refusal, Fault)
    assert (refusal.code, refusal.details.get("refused")) == ("SHARD_UNAVAILABLE", True)


@pytest.mark.parametrize("command", [GetQueueStats(), Receive(1, 0), Enqueue([])], ids=lambda each: type(each).__name__)
def test_a_command_without_a_queue_is_refused(host: HostHarness, command: Command) -> None:
    refusal = host.ask(command, "")
    assert isinstance(refusal, Fault)
    assert (refusal.code, "routing key" in refusal.text) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize("opcode", [1, 60, *(opcode for opcode in BY_OPCODE if opcode >= 80)])
def test_what_is_for_the_router_is_refused(host: HostHarness, queue: str, opcode: int) -> None:
    body = next(body for body in BODIES if isinstance(body.struct, BY_OPCODE[opcode]))
    assert fault(host, opcode, queue.encode(), bytes.fromhex(body.hex)).code == "INVALID_FRAME"


@pytest.mark.parametrize("opcode", [84, 85, 86, 90, 91, 92, 93, 200])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x94\x07\x01\x01\x90"])
def test_a_bad_frame_that_waits_for_no_answer_gets_none(host: HostHarness, opcode: int, body: bytes) -> None:
    assert host.exchange([b"", pack_header(opcode), b"", body]) == []


@pytest.mark.parametrize("key", [b"\xff\xfe", b"\xc3", b"a" * 100_000, "größe".encode(), b"\0"])
def test_a_routing_key_that_names_no_queue_is_refused(host: HostHarness, key: bytes) -> None:
    code = fault(host, GetQueueStats.opcode, key, b"\x90").code
    assert code in {"QUEUE_NOT_FOUND", "SHARD_UNAVAILABLE", "INVALID_ARGUMENT"}


@pytest.mark.parametrize(
    "frame",
    [
        [],
        [CLIENT],
        [CLIENT, b"", b""],
        [CLIENT, b"short", b"q", b"\x90"],
        [CLIENT, b"XX" + bytes(16), b"q", b"\x90"],
        [CLIENT, pack_header(12), b"q", b"\x90", b"more"],
    ],
    ids=["nothing", "one part", "three parts", "short header", "other magic", "five parts"],
)
def test_what_cannot_be_answered_is_dropped(host: HostHarness, frame: list[bytes]) -> None:
    assert host.exchange(frame) == []


def test_bad_frames_do_not_disturb_the_good_ones_of_their_turn(host: HostHarness, queue: str) -> None:
    good = [CLIENT, *encode_command(Enqueue([seal_envelope(b"x")]), 1, queue)]
    bad = [b"\x02bad", pack_header(Enqueue.opcode, 1), queue.encode(), b"\xc1"]
    answers = {frame[0]: unpack_header(frame[1]).flags for frame in host.exchange(bad, good, [b"\x03"], bad)}
    assert answers == {CLIENT: REPLY, b"\x02bad": REPLY | ERROR}


extreme = st.sampled_from([0, -1, 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
fences = st.lists(st.tuples(extreme | st.just((1 << 32) + 1), st.lists(extreme, max_size=3)), max_size=3)
texts = st.sampled_from(["", "\0", "x" * 2000, "\U0010ffff", "default"])


@hypothesis_settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_no_values_of_the_right_types_can_break_a_shard(data: st.DataObject) -> None:
    host = HostHarness()
    name = NAMES[0]
    host.ask(CreateQueue(QueueOptions()), name)
    for _ in range(data.draw(st.integers(1, 6))):
        opcode, fields = data.draw(st.sampled_from(list(FIELDS)).flatmap(lambda op: st.tuples(st.just(op), FIELDS[op])))
        host.exchange([CLIENT, pack_header(opcode, 5), name.encode(), encode_body(fields)])
        host.now_ms += data.draw(st.sampled_from([0, 1, 20_000]))


keys = st.lists(st.lists(texts, max_size=3), max_size=3)
columns = extreme | st.lists(extreme, min_size=2, max_size=2)
FIELDS = {
    10: st.tuples(st.tuples(st.none() | extreme, st.none() | extreme)),
    11: st.tuples(st.booleans()),
    13: st.tuples(texts),
    14: st.tuples(st.lists(st.none() | extreme, min_size=2, max_size=2), st.lists(st.sampled_from(["max_attempts", "x"]))),
    15: st.tuples(st.none() | texts),
    16: st.tuples(st.booleans(), st.none() | texts),
    17: st.tuples(extreme, st.none() | st.tuples(extreme, extreme), st.none() | texts, st.none() | texts),
    18: st.tuples(extreme, extreme),
    20: st.tuples(
        st.lists(st.binary(max_size=6) | st.just(bytes(9)), min_size=2, max_size=2),
        texts | st.lists(texts, min_size=2, max_size=2), columns, columns, columns, columns, columns, keys, columns, columns,
        texts | st.lists(texts, min_size=2, max_size=2),
    ),
    30: st.tuples(extreme, extreme),
    31: st.tuples(extreme, extreme, st.lists(extreme, max_size=3)),
    32: st.tuples(extreme),
    36: st.tuples(extreme),
    40: st.tuples(st.integers(0, 7), fences, texts, st.none() | st.binary(max_size=4), extreme),
    41: st.tuples(fences, extreme),
    50: st.tuples(extreme, st.none() | texts),
    70: st.tuples(texts, st.none() | texts),
    71: st.tuples(texts),
    72: st.tuples(texts),
}  # fmt: skip


def test_closing_closes_every_store(host: HostHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    for index, shard in host.host.shards.items():
        monkeypatch.setattr(shard.store, "close", lambda index=index: closed.append(index))
    host.host.close()
    assert closed == list(HERE)


def test_a_turn_answers_a_settlement_of_what_it_delivers_later(host: HostHarness, queue: str) -> None:
    """Deliveries come after the commands of their turn, so a guess at a fence is refused."""
    host.ask(Enqueue([seal_envelope(b"x")]), queue)
    receive = [CLIENT, *encode_command(Receive(1, 0), 50, queue)]
    guess = [CLIENT, *encode_command(Settle(Verb.ACK, [((1 << 32) + 1, [0])]), 51, queue)]
    sent = {unpack_header(frame[1]).request: frame for frame in host.exchange(receive, guess)}
    settled = decode_body(Settle.reply, sent[51][3])
    assert len(settled.faults) == 1  # type: ignore[attr-defined]
    assert len(decode_body(Delivered, sent[50][3]).batches) == 1

"""What is at risk in a cluster of several hosts, in the same words wherever it is shown."""

import pytest

from fila_cluster.client.shard_copies import BEHIND_MAX, Risk, shard_copies
from fila_cluster.client.views import HostList as HostView
from fila_cluster.client.views import hosts as view_of
from fila_cluster.ops.analysis.attention import attention
from fila_cluster.ops.analysis.hosts import Obstacle, host_rows, hosts_in, obstacles, risks, warnings, without_folders
from fila_proto_zmq.commands import Histogram, HostCopy, HostList, HostWorker, LogReplicas, Metrics
from fila_worker.log.placement import PlacementLimits
from tests.unit.analysis.looks import follows, hosts, leads, look, shard, worker

STUCK = "the log has confirmed nothing for 7.2 s: no quorum of its brokers, or they can't be reached"
DEAF = "the log's partition has not answered for 6.0 s: no quorum of its brokers, or they can't be reached"
WELL = hosts(2, a=[leads(0), follows(1)], b=[follows(0), leads(1)])


def known(metrics: Metrics) -> HostView:
    found = hosts_in(metrics)
    assert found is not None
    return found


def at_risk(metrics: Metrics) -> list[Risk]:
    return risks(known(metrics))


def texts(metrics: Metrics) -> list[tuple[str, str]]:
    return [(risk.code, risk.text) for risk in at_risk(metrics)]


def test_a_copy_has_caught_up_for_people_when_it_has_for_the_placement():
    assert PlacementLimits().behind_max == BEHIND_MAX


def test_nothing_is_at_risk_when_each_shard_has_a_leader_and_a_standby():
    assert at_risk(WELL) == []
    assert (obstacles(WELL, ""), warnings(WELL), attention(WELL, None)) == ([], [], [])


def test_a_cluster_without_a_replicated_log_has_no_hosts():
    one = look(worker("worker-0", shard(0)))
    assert hosts_in(one) is None
    assert hosts_in(None) is None
    assert warnings(one) == []


def test_who_leads_and_who_follows_by_shard():
    first, second = shard_copies(known(WELL))
    assert [(each.leader.host if each.leader else None, [held.host for held in each.others]) for each in (first, second)] == [
        ("a", ["b"]),
        ("b", ["a"]),
    ]


def test_a_leader_of_before_does_not_lead():
    """It was frozen, and does not know yet that another one has taken over."""
    (only,) = shard_copies(known(hosts(1, a=[leads(0, epoch=5)], b=[leads(0, epoch=9)])))
    assert only.leader is not None
    assert (only.leader.host, [held.host for held in only.others], only.ready) == ("b", ["a"], [])


@pytest.mark.parametrize(
    ("standby", "is_ready"),
    [
        (follows(0, BEHIND_MAX), True),
        (follows(0, BEHIND_MAX + 1), False),
        (follows(0, -1), False),
        (follows(0, problem=DEAF), False),
        (HostCopy(0, "begins"), False),
    ],
)
def test_a_standby_can_take_over_if_it_has_caught_up_and_hears_the_log(standby: HostCopy, is_ready: bool):
    codes = [risk.code for risk in at_risk(hosts(1, a=[leads(0)], b=[standby]))]
    assert ("no_standby" in codes) is not is_ready


def test_shards_without_a_standby_are_one_sentence_with_their_number():
    assert texts(hosts(3, a=[leads(0), leads(1), leads(2)], b=[follows(2)]))[0] == (
        "no_standby",
        "one more loss makes 2 shards (0–1) wait for a recovery from the log",
    )
    assert texts(hosts(1, a=[leads(0)])) == [("no_standby", "one more loss makes shard 0 wait for a recovery from the log")]


@pytest.mark.parametrize(("standbys", "code"), [(0, None), (1, None), (2, "few_standbys")])
def test_fewer_standbys_than_configured_are_a_risk(standbys: int, code: str | None):
    found = hosts(1, a=[leads(0)], b=[follows(0)])
    for each in found.workers:
        each.host.standbys = standbys
    assert [risk.code for risk in at_risk(found)] == ([] if code is None else [code])


def test_without_a_wish_for_standbys_one_host_alone_is_well():
    alone = hosts(1, a=[leads(0)])
    alone.workers[0].host.standbys = 0
    assert at_risk(alone) == []


def test_a_log_with_fewer_copies_than_it_should_have_is_a_risk():
    """The shards with the least reserve are first."""
    well, short, last = LogReplicas(5, 5, 3), LogReplicas(4, 5, 3), LogReplicas(3, 5, 3)
    found = hosts(
        4,
        a=[leads(0, log=last), leads(1, log=short), leads(2, log=well), leads(3)],
        b=[follows(0), follows(1), follows(2), follows(3, log=last)],
    )
    assert texts(found) == [
        (
            "log_under_replicated",
            "3 of 5 brokers of the log are in sync for 2 shards (0, 3): one more lost, and nothing is confirmed",
        ),
        ("log_under_replicated", "4 of 5 brokers of the log are in sync for shard 1: 1 more may be lost"),
    ]
    assert obstacles(found, "") == []


def test_a_shard_whose_log_has_too_few_copies_says_so():
    stuck = hosts(1, a=[leads(0, role="waits", problem=STUCK, proof_age_ms=7200, log=LogReplicas(1, 3, 2))], b=[follows(0)])
    assert texts(stuck) == [("no_quorum", f"shard 0 waits for the log: {STUCK}; 1 of 3 brokers are in sync, and 2 must be")]


def test_a_log_of_one_broker_is_as_it_was_wanted():
    assert at_risk(hosts(1, a=[leads(0, log=LogReplicas(1, 1, 1))], b=[follows(0)])) == []


def test_a_host_that_catches_up_is_named_with_its_worst_copy():
    behind = hosts(2, a=[leads(0), leads(1)], b=[follows(0), follows(1)], c=[follows(0, 12_000), follows(1, 300)])
    assert texts(behind) == [("copy_behind", "c catches up with shards 0–1, up to 12,000 records behind")]
    assert obstacles(behind, "") == []


@pytest.mark.parametrize("role", ["leads", "waits"])
def test_a_shard_whose_log_does_not_confirm_is_not_ready(role: str):
    stuck = hosts(2, a=[leads(0, role=role, problem=STUCK, proof_age_ms=7200), follows(1)], b=[follows(0), leads(1)])
    text = f"shard 0 waits for the log: {STUCK}"
    assert texts(stuck) == [("no_quorum", text)]
    assert obstacles(stuck, "") == [{"shard": 0, "state": "no_quorum", "text": text}]
    (concern,) = attention(stuck, None)
    assert (concern.severity, concern.code, concern.text, concern.shard) == ("critical", "no_quorum", text, 0)


def test_of_several_shards_that_wait_for_the_log_the_longest_wait_is_told():
    longer = STUCK.replace("7.2", "9.9")
    stuck = hosts(2, a=[leads(0, problem=STUCK, proof_age_ms=7200), leads(1, problem=longer, proof_age_ms=9900)])
    assert texts(stuck) == [("no_quorum", f"shards 0–1 wait for the log: {longer}")]
    assert [found["shard"] for found in obstacles(stuck, "")] == [0, 1]


@pytest.mark.parametrize(
    ("copies", "code", "text"),
    [
        ([follows(0)], "no_leader", "no host leads shard 0 now: a standby takes over in at most 10 s"),
        ([follows(0, 900, role="claims")], "no_leader", "no host leads shard 0 now: a standby takes over in at most 10 s"),
        ([follows(0, 900)], "catching_up", "no host leads shard 0 now: a copy has to catch up first, 900 records behind"),
        ([leads(0, role="recovers")], "recovering", "b takes over shard 0, and serves in a moment"),
        ([], "no_copy", "no host leads shard 0 now, and no host that answers has a copy"),
        ([follows(0, problem=DEAF)], "no_quorum", f"shard 0 waits for the log: {DEAF}"),
    ],
)
def test_a_shard_that_no_host_serves_says_how_it_goes_on(copies: list[HostCopy], code: str, text: str):
    lost = hosts(2, down=("a",), b=[*copies, leads(1)], c=[follows(1)])
    assert texts(lost)[0] == (code, text)
    assert obstacles(lost, "") == [{"shard": 0, "state": code, "text": text}]
    concerns = attention(lost, None)
    assert [concern.code for concern in concerns if concern.shard == 0] == [code], "once, not as a shard that is down too"
    assert concerns[0].severity == "critical"


def test_what_stops_no_shard_is_a_warning_and_the_cluster_is_ready():
    lost = hosts(1, down=("b",), a=[leads(0)])
    assert obstacles(lost, "") == []
    assert [warning["state"] for warning in warnings(lost)] == ["no_standby", "host_silent"]
    assert warnings(lost)[1]["text"] == "b/worker-0 does not answer: its copies are not kept up, as far as is known"
    assert [(concern.severity, concern.code) for concern in attention(lost, None)] == [
        ("warning", "no_standby"),
        ("warning", "host_silent"),
    ]


def test_a_leader_that_only_does_not_answer_is_not_called_gone():
    """The router serves the shard: its worker is slow to answer monitors, and nothing else."""
    slow = hosts(1, silent=("a",), b=[follows(0)])
    assert [risk.code for risk in at_risk(slow)] == ["host_silent"]
    assert obstacles(slow, "") == []


def test_hosts_have_rows():
    found = hosts(
        3, a=[leads(0, unconfirmed_bytes=7), leads(1, unconfirmed_bytes=8)], b=[follows(0, 3), follows(1, 40), leads(2)]
    )
    first, second = host_rows(known(found))
    assert (first.host, first.address, first.workers) == ("a", "a.example", ["a/worker-0"])
    assert (first.leads, first.follows, first.behind, first.unconfirmed_bytes, first.queues) == ([0, 1], [], None, 15, 4)
    assert (second.leads, second.follows, second.behind) == ([2], [0, 1], 40)


def test_a_view_has_seconds_and_none_for_what_is_not_known():
    took = Histogram([1_000_000, 2_000_000], [0, 4, 0], 6_000_000)
    copies = [HostCopy(1, "follows", 5, 90, 101, 11), HostCopy(0, "leads", 5, 100, proof_age_ms=250, confirm_ns=took)]
    (seen,) = view_of(HostList([HostWorker("a", "a/worker-0", "", copies)], 2)).workers
    first, second = seen.copies
    assert (first.shard, first.end, first.behind, first.proof_age) == (0, None, None, 0.25)
    assert (first.confirm_p50, first.confirm_p99) == (0.0015, pytest.approx(0.00199))
    assert (second.end, second.behind, second.proof_age, second.confirm_p50) == (101, 11, None, None)


def test_a_host_with_a_full_disk_is_a_risk_and_no_standby():
    full = "its disk has 12 MiB free, and 1024 must stay free ([limits] min_free_disk_bytes)"
    found = hosts(2, a=[leads(0), follows(1)], b=[follows(0), leads(1)])
    found.workers[1].host.problem = full
    assert texts(found) == [
        ("no_standby", "one more loss makes shard 0 wait for a recovery from the log"),
        ("host_failing", f"b gives its shards to hosts with room and takes none over, and still leads shard 1: {full}"),
    ]
    assert [concern.severity for concern in attention(found, None)] == ["warning", "warning"]
    assert [row.problems for row in host_rows(known(found))] == [[], [full]]
    assert (obstacles(found, ""), [each["state"] for each in warnings(found)]) == ([], ["no_standby", "host_failing"])


def test_a_copy_that_does_not_go_on_is_a_risk():
    found = hosts(
        2, a=[leads(0), leads(1)], b=[follows(0), follows(1)], c=[follows(0), HostCopy(1, "begins", problem="no space")]
    )
    assert texts(found) == [("copy_failing", "the copies that c has of shard 1 do not go on: no space")]


def test_an_unsafe_setting_of_the_log_is_critical_and_said_once():
    unsafe = "the topic fila.main has unsafe settings: min.insync.replicas is 1, wanted 2 or more"
    found = hosts(2, a=[leads(0), follows(1)], b=[follows(0), leads(1)])
    for each in found.workers:
        each.host.log_problem = unsafe
    assert texts(found) == [("log_unsafe", f"confirmed messages may be lost: {unsafe}")]
    assert [concern.severity for concern in attention(found, None)] == ["critical"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shard 1 is waiting: /var/lib/fila/shard-0001: no space", "shard 1 is waiting: shard-0001: no space"),
        ("open '/srv/x/000012.sst': gone", "open '000012.sst': gone"),
        ("the host at tcp://a.example:5556/x, 3 of 4", "the host at tcp://a.example:5556/x, 3 of 4"),
    ],
)
def test_who_needs_no_key_sees_no_folders(text: str, shown: str):
    (found,) = without_folders([Obstacle(shard=1, state="waiting", text=text)])
    assert found == {"shard": 1, "state": "waiting", "text": shown}

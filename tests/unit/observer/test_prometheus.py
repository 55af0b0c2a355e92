"""The page that Prometheus reads, read as Prometheus does."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fila_cluster.ops.analysis.partitions import with_whole_queues
from fila_cluster.ops.observer.catalogue import SCOPES, UP, families
from fila_cluster.ops.observer.prometheus import exposition
from fila_proto_zmq.commands import KeyMetrics, Metrics
from tests.unit.observer.told import STARTED_MS, cluster, hosted, queue


def read(metrics: Metrics | None) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, in the order of the labels' names."""
    page = exposition(families(metrics)).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_without_an_answer_there_is_only_that():
    assert read(None) == {("fila_up",): 0}


def test_copies_of_shards_have_numbers_by_shard_and_host():
    told = read(hosted())
    assert [told["fila_copy_leads", "a", shard] for shard in "012"] == [1, 0, 0]
    assert (told["fila_copy_behind_records", "a", "0"], told["fila_copy_behind_records", "a", "1"]) == (0, 30)
    assert ("fila_copy_behind_records", "a", "2") not in told, "it is not known"
    assert told["fila_log_unconfirmed_bytes", "a", "0"] == 4096
    assert told["fila_log_confirm_seconds_count", "a", "0"] == 4
    assert told["fila_log_confirm_seconds_sum", "a", "0"] == pytest.approx(0.009)
    assert ("fila_log_confirm_seconds_count", "a", "1") not in told


def test_without_a_replicated_log_there_are_no_copies():
    assert not [name for name, *_ in read(cluster(queue())) if "_copy_" in name or "_log_" in name]


def test_every_metric_of_the_catalogue_is_exported():
    page = exposition(families(hosted(queue("big@0")))).decode()
    names = {UP.prometheus_name} | {metric.prometheus_name for scope in SCOPES for metric in scope.metrics}
    assert {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")} == names


def test_a_queue_with_partitions_is_one_and_each_counts_for_itself():
    told = read(with_whole_queues(cluster(queue("big@0", oldest_pending_ms=2000), queue("big@10"), queue())))
    assert (told["fila_queue_pending", "big"], told["fila_queue_pending", "orders"]) == (6, 3)
    assert (told["fila_queue_oldest_age_seconds", "big"], told["fila_lua_breaker_open", "big"]) == (2, 1)
    assert [told["fila_messages_acked_total", *labels] for labels in (("0", "big"), ("10", "big"), ("orders",))] == [4, 4, 4]
    assert told["fila_messages_rejected_total", "OVERLOADED", "10", "big"] == 6
    assert told["fila_messages_settle_seconds_count", "10", "big"] == 4
    assert told["fila_key_delivered_total", "acme", "0", "big"] == 6
    assert told["fila_key_pending", "acme", "big"] == 6
    assert (told["fila_partition_pending", "10", "big"], told["fila_partition_oldest_age_seconds", "0", "big"]) == (3, 2)
    assert ("fila_messages_acked_total", "big") not in told, "it would fall when one of the workers is started anew"


def test_the_cluster_s_numbers():
    told = read(cluster())
    assert told["fila_up",] == 1
    assert (told["fila_worker_up", "worker-0"], told["fila_worker_up", "worker-1"]) == (1, 0)
    assert (told["fila_shard_up", "0"], told["fila_shard_up", "1"]) == (1, 0)
    assert told["fila_worker_rss_bytes", "worker-0"] == 777
    assert told["fila_worker_cpu_seconds_total", "worker-0"] == 1.25
    assert told["fila_router_start_time_seconds",] == STARTED_MS / 1000
    assert [
        told["fila_router_frames_total", way] for way in ("from_clients", "to_clients", "from_workers", "to_workers")
    ] == [
        1,
        2,
        3,
        4,
    ]
    assert (told["fila_router_rss_bytes",], told["fila_router_cpu_seconds_total",]) == (555, 2.5)
    assert told["fila_router_refused_total", "OVERLOADED"] == 5
    assert (told["fila_router_in_flight", "worker-0"], told["fila_router_in_flight_bytes", "worker-0"]) == (6, 600)
    assert told["fila_shard_refused_total", "LEASE_EXPIRED", "0"] == 9
    assert told["fila_storage_stalled", "0"] == 1
    assert (told["fila_throttle_passes_total", "0"], told["fila_throttle_key_hits_total", "0", "api"]) == (60, 7)
    assert told["fila_throttle_tokens_remaining", "0", "api"] == 1.5


def test_a_queue_s_numbers():
    told = read(cluster(queue()))
    wanted = {"enqueued": 10, "delivered": 7, "acked": 4, "nacked": 1, "expired": 2, "dead_lettered": 3, "redriven": 5}
    assert {name: told[f"fila_messages_{name}_total", "orders"] for name in wanted} == wanted
    gauges = {"pending": 3, "in_flight": 2, "delayed": 1, "depth": 6, "oldest_age_seconds": 1.5, "consumers": 4, "paused": 1}
    assert {name: told[f"fila_queue_{name}", "orders"] for name in gauges} == gauges
    assert told["fila_messages_rejected_total", "OVERLOADED", "orders"] == 6
    assert (told["fila_scheduler_drr_turns_total", "orders"], told["fila_scheduler_drr_rounds_total", "orders"]) == (90, 80)
    assert (told["fila_key_delivered_total", "acme", "orders"], told["fila_key_delivered_total", "(other)", "orders"]) == (
        6,
        1,
    )
    assert told["fila_key_fair_share_ratio", "acme", "orders"] == 0.5
    assert ("fila_key_pending", "(other)", "orders") not in told
    assert (told["fila_lua_errors_total", "orders"], told["fila_lua_breaker_open", "orders"]) == (1, 1)


def test_histograms_are_cumulative_in_the_metric_s_unit():
    told = read(cluster(queue()))
    buckets = [told["fila_messages_dwell_seconds_bucket", bound, "orders"] for bound in ("0.01", "1.0", "+Inf")]
    assert buckets == [1, 3, 7]
    assert told["fila_messages_dwell_seconds_count", "orders"] == 7
    assert told["fila_messages_dwell_seconds_sum", "orders"] == 9
    assert told["fila_messages_settle_seconds_bucket", "0.01", "orders"] == 3
    assert told["fila_messages_settle_seconds_sum", "orders"] == 0.5
    assert told["fila_lua_execution_duration_us_bucket", "5.0", "orders"] == 8
    assert told["fila_worker_turn_duration_seconds_bucket", "5e-05", "worker-0"] == 5


def test_a_queue_where_nothing_happened_has_no_histogram_and_no_hooks():
    told = read(cluster(queue(dwell_ms=None, settle_ms=None, hooks=None, keys=[], known_keys=0, other_delivered=0)))
    assert not [name for name, *_ in told if "dwell" in name or "settle" in name or "lua" in name or "fila_key" in name]


def test_labels_may_be_any_text():
    nasty = 'a"b\\c\nd{}=,'
    told = read(cluster(queue(keys=[KeyMetrics(nasty, 1, 1, 1, 1.0)])))
    assert told["fila_key_pending", nasty, "orders"] == 1

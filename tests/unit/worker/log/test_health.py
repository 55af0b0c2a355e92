"""A disk that was full or has failed is well again only with room to spare, and after a while."""

from fila_worker.replication.replicated import DiskHealth

MIB = 1 << 20


def test_a_disk_with_less_room_than_must_stay_free_is_not_well_until_it_has_room_to_spare() -> None:
    health = DiskHealth(1000 * MIB)
    health.measured(1000 * MIB)
    assert health.problem(0) == ""
    health.measured(999 * MIB)
    assert health.problem(0) == "its disk has 999 MiB free, and 1000 must stay free ([limits] min_free_disk_bytes)"
    health.measured(1249 * MIB)
    assert health.problem(0)
    health.measured(1250 * MIB)
    assert health.problem(0) == ""
    health.measured(1000 * MIB)
    assert health.problem(0) == ""


def test_a_disk_that_has_failed_is_well_after_a_while_without_failures() -> None:
    health = DiskHealth(0, well_ms=1000)
    health.failed("no space left on device", 100)
    assert health.problem(100) == "its disk failed lately: no space left on device"
    health.failed("input/output error", 900)
    assert "input/output error" in health.problem(1899)
    assert health.problem(1900) == ""

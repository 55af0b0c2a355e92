"""The pytest plugin, in runs of pytest of its own."""

import subprocess
import sys

import pytest

import fila_cluster.testing.kit  # before pytest runs within pytest, which forgets what it imports
from tests.support.kit import PLUGIN

pytest_plugins = "pytester"
assert fila_cluster.testing.kit


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest print as it does at a terminal: in CI it shortens nothing, so its summary repeats whole stories."""
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", "-p", "no:nicegui.testing", *options)


def test_each_test_has_a_broker_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os
        import pytest
        from fila_cluster import Client

        @pytest.mark.parametrize("number", range(5))
        def test_fresh(fila, number):
            assert fila.list_queues() == []
            fila.create_queue("q")
            assert os.environ["FILA_ENDPOINT"] == fila.endpoint == "memory://fila"
            with Client() as other:
                other.enqueue("q", b"x")
            fila.assert_pending("q", 1)

        def test_without():
            assert "FILA_ENDPOINT" not in os.environ
        """,
    )
    result.assert_outcomes(passed=6)


def test_the_report_of_a_failure_has_the_stories_of_its_queues(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_fails(fila):
            fila.create_queue("orders")
            fila.create_queue("untouched")
            fila.enqueue("orders", b"order 1")
            fila.receive("orders")[0].nack("boom")
            assert False

        def test_passes(fila):
            fila.create_queue("quiet")
            fila.enqueue("quiet", b"x")
        """,
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*- queues -*", "queue 'orders': 1 pending*", "*enqueued order 1", "*nacked: boom", "*now  pending*"]
    )
    result.stdout.no_fnmatch_line("*quiet*")


def test_a_fixture_that_fails_has_stories_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture
        def shop(fila):
            fila.create_queue("orders")
            fila.enqueue("orders", b"order 1")
            raise RuntimeError("the shop is closed")

        def test_it(shop):
            pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*- queues -*", "queue 'orders': 1 pending*"])


def test_an_assertion_shows_the_story_and_not_the_kit(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_fails(fila):
            fila.create_queue("orders")
            fila.enqueue("orders", b"order 1")
            fila.assert_empty("orders")

        def test_plain(fila):
            fila.create_queue("orders")
            assert fila.queue("orders").pending == 7
        """,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E*AssertionError: queue 'orders': messages: 1, expected: 0"])
    result.stdout.fnmatch_lines(["E*assert 0 == 7"])
    result.stdout.no_fnmatch_line("*/testing/kit.py*")
    assert result.stdout.str().count("enqueued order 1") == 1


def test_a_test_that_closes_its_client_has_no_story_and_no_second_error(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_fails(fila):
            fila.close()
            assert False
        """,
    )
    result.assert_outcomes(failed=1)


def test_nothing_answers_at_the_endpoint(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(fila): pass", "--fila-endpoint", "memory://nobody")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no broker memory://nobody in this process*"])


def test_another_broker_is_used_and_left_as_it_was(pytester: pytest.Pytester) -> None:
    """With a second broker in memory in place of a cluster; ``tests/integration/cluster/test_kit.py`` has a cluster."""
    with fila_cluster.testing.kit.broker("outside") as outside:
        outside.set_config("kept", "1")
        result = run(
            pytester,
            """
            def test_one(fila):
                fila.create_queue("q")
                fila.enqueue("q", b"x", delay=0.05)
                fila.set_config("kept", "2")
                fila.set_config("new", "1")
                fila.put_template("tenant-*", max_attempts=3)
                fila.put_schedule("nightly", queue="tenant-acme", every=60, payload=b"x")

            def test_two(fila):
                assert fila.list_queues() == []
                assert (fila.list_schedules(), fila.list_templates()) == ([], {})
                assert fila.list_config() == {"kept": "1"}
                fila.clock.advance(0.01)

            def test_too_long(fila):
                fila.clock.advance(3)
            """,
            "--fila-endpoint", outside.endpoint, "--fila-wait-max", "2", "-rs",
        )  # fmt: skip
        result.assert_outcomes(passed=2, skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED*clock.advance(3) would wait for longer than 2 s*"])
        assert outside.list_queues() == []
        assert outside.list_config() == {"kept": "1"}


def test_a_broker_with_queues_is_not_touched(pytester: pytest.Pytester) -> None:
    with fila_cluster.testing.kit.broker("in-use") as outside:
        outside.create_queue("precious")
        result = run(pytester, "def test_it(fila): raise AssertionError", "--fila-endpoint", outside.endpoint)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(["*has 1 queues (precious): tests need a broker of their own*"])
        assert [info.name for info in outside.list_queues()] == ["precious", "precious.dlq"]


def test_a_broker_with_schedules_or_templates_is_not_touched(pytester: pytest.Pytester) -> None:
    with fila_cluster.testing.kit.broker("in-use") as outside:
        outside.put_template("tenant-*", max_attempts=3)
        result = run(pytester, "def test_it(fila): raise AssertionError", "--fila-endpoint", outside.endpoint)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(["*has 1 templates (tenant-[*]): tests need a broker of their own*"])
        assert list(outside.list_templates()) == ["tenant-*"]


def test_a_run_that_needs_no_broker_loads_none() -> None:
    code = "import fila_cluster.testing.plugin, sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"fila_worker", "fila_router", "fila_proto_zmq", "zmq", "msgspec", "lupa", "rocksdict", "psutil"} == set()

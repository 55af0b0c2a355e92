"""``fila-cluster top`` on a real cluster: each view, each action; on a real terminal, too."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from textual.pilot import Pilot

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.ops.top.app import Top, take_snapshot
from fila_cluster.ops.top.poller import Poller
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.external.tmux import terminal
from tests.support.machine import TMUX, require

LOOK_EVERY_S = 0.1
Main = Callable[["Screen"], Awaitable[None]]


class Screen:
    """A running ``top``, and what is to be seen of it."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top, self.pilot = top, pilot

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(strip.text for strip in self.top.screen._compositor.render_strips())

    @property
    def listed(self) -> list[str]:
        """The lines from the titles of the list on."""
        return self.text.split("\n")[6:]

    def line(self, word: str) -> list[str]:
        """The words of the list's first line with this one; none while there is no such line."""
        return next((line.split() for line in self.listed if word in line), [])

    @property
    def names(self) -> list[str]:
        """The first words of all that is listed."""
        rows = len(self.top.board.grid.listing.visible())
        return [line.split()[0] for line in self.listed[1 : 1 + rows] if line.strip()]

    async def press(self, *keys: str) -> None:
        """Press them one after the other, as a person does who sees what each did before the next."""
        for key in keys:
            await self.pilot.press(key)
            await self.until(lambda: self.is_settled, f"{key!r} is done")

    @property
    def is_settled(self) -> bool:
        """Whether the next key goes where it should: to the list that is shown, or the box that asks for a filter."""
        board = self.top.board
        return self.top.screen is not board or (board._filter_box if board._filter_box.display else board.grid).has_focus

    async def filter(self, text: str) -> None:
        """Show only what has this in its name."""
        box = self.top.board._filter_box
        await self.press("slash")
        await self.until(lambda: box.has_focus, "it asks for a filter")
        await self.press(*text)
        await self.until(lambda: self.top.board.grid.listing.wanted == text.casefold(), f"only {text!r} is listed")
        await self.press("enter")
        await self.until(lambda: self.top.board.grid.has_focus, "it goes on")

    async def lists(self, *names: str) -> None:
        """Wait until these are listed, in this order."""
        await self.until(lambda: self.names == list(names), f"{names} are listed")

    async def shows(self, *texts: str) -> None:
        """Wait until all of them are to be seen."""
        await self.until(lambda: all(text in self.text for text in texts), f"the screen shows {texts}")

    async def hides(self, text: str) -> None:
        await self.until(lambda: text not in self.text, f"the screen does not show {text!r}")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at, f"never happened: {what}\n{self.text}"
            await self.pilot.pause(0.02)


def watch(
    cluster: Cluster,
    main: Main,
    *,
    queue: str | None = None,
    size: tuple[int, int] = (80, 24),
    interval_s: float = LOOK_EVERY_S,
) -> None:
    """Run ``top``, and what a person does with it."""

    async def run() -> None:
        async with (
            AsyncClient(cluster.endpoint, timeout=3) as watching,
            AsyncClient(cluster.endpoint, timeout=PATIENCE_S) as acting,
        ):
            top = Top(Poller(watching), acting, interval_s, queue)
            async with top.run_test(size=size) as pilot:
                await main(Screen(top, pilot))

    asyncio.run(run())


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with queues of every kind."""
    with running(tmp_path_factory.mktemp("shop"), workers=2) as cluster, cluster.client() as client:
        for name in ("orders", "emails", "sleepy", "broken"):
            client.create_queue(name, max_attempts=1 if name == "broken" else None)
        client.enqueue_many("orders", [Message(b"", fairness_key=f"tenant-{n % 3}", weight=1 + n % 3) for n in range(30)])
        client.enqueue_many("emails", [Message(b"", delay=3600)] * 4)
        client.enqueue_many("sleepy", [Message(b"")] * 7)
        client.pause("sleepy")
        client.set_config("throttle:provider:rate", "5")
        client.set_config("throttle:provider:burst", "1")
        client.enqueue_many("emails", [Message(b"", throttle_keys=["provider"])] * 2)
        break_down(client, 3)
        yield cluster


def break_down(client: Client, count: int) -> None:
    """Make dead letters."""
    client.enqueue_many("broken", [Message(b"")] * count)
    failed = 0
    while failed < count:
        deliveries = client.receive("broken", count, wait=60)
        client.nack(deliveries, "card declined")
        failed += len(deliveries)


# --- views ------------------------------------------------------------------------------------------------------------


def test_queues_with_the_broker_s_numbers(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("workers 2/2", "queues 4", "enqueued 0/s", "orders", "broken")
        assert screen.line("orders")[:5] == ["orders", "unread", "30", "0", "0"]
        assert screen.line("sleepy")[:3] == ["sleepy", "paused", "7"]
        assert screen.line("emails")[2:5] == ["2", "0", "4"]
        assert screen.line("broken")[-1] == "3"
        assert "broken.dlq" not in screen.text
        await screen.press("full_stop")
        await screen.shows("broken.dlq")

    watch(shop, main)


@pytest.mark.whole
def test_rates_of_a_queue_that_is_used(shop: Cluster):
    async def main(screen: Screen) -> None:
        async with AsyncClient(shop.endpoint) as client:
            await client.create_queue("busy")

            async def work() -> None:
                await client.enqueue("busy", b"")
                await client.ack(await client.receive("busy", 10, wait=1))

            async def used() -> None:
                while True:
                    await work()

            working = asyncio.ensure_future(used())
            number = screen.line
            await screen.shows("busy")
            await screen.until(
                lambda: len(number("busy")) > 4 and all(cell not in "–0" for cell in number("busy")[-4:-1]),
                "in, out and acked have rates",
            )
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await client.delete_queue("busy", force=True)
            await screen.until(lambda: not any("busy" in line for line in screen.listed), "it is gone")

    watch(shop, main, size=(120, 30), interval_s=0.5)  # long enough for some of each


def test_sorting_and_filtering(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.lists("orders", "sleepy", "emails", "broken")
        await screen.press("left", "left")
        await screen.lists("broken", "emails", "orders", "sleepy")
        await screen.press("s")
        await screen.lists("sleepy", "orders", "emails", "broken")
        await screen.filter("EM")
        await screen.shows("1-1 of 1 with 'em'")
        await screen.lists("emails")
        await screen.press("escape")
        await screen.shows("1-4 of 4")
        await screen.press("slash", *"nothing like it")
        await screen.lists()
        await screen.press("escape")
        await screen.shows("1-4 of 4")
        await screen.pilot.click("#queues", offset=(2, 0))
        await screen.lists("broken", "emails", "orders", "sleepy")

    watch(shop, main)


def test_the_keys_of_the_chosen_queue(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("orders")
        await screen.press("enter")
        await screen.shows("keys of orders", "tenant-2", "50%", "33%", "17%")
        assert screen.line("tenant-2")[:3] == ["tenant-2", "3", "10"]
        await screen.press("escape")
        await screen.shows("sleepy", "emails")
        await screen.press("down", "down", "enter")
        await screen.shows("keys of emails", "throttle provider", "of 1 tokens")
        await screen.hides("tenant-2")

    watch(shop, main)


def test_a_queue_that_is_not_there_is_a_line(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("keys of nowhere", "no queue 'nowhere'")
        await screen.press("escape")
        await screen.shows("orders")

    watch(shop, main, queue="nowhere")


def test_workers_with_what_they_use(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("orders")
        await screen.press("3")
        await screen.shows("worker-0", "worker-1", "up")
        for worker in shop.status().workers:
            await screen.until(lambda worker=worker: screen.line(worker.name)[1:2] == [str(worker.pid)], "its pid")
        await screen.until(lambda: "%" in "".join(screen.line("worker-0")[4:5]), "CPU time is known")

    watch(shop, main)


def test_what_needs_attention_and_what_to_do(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("orders")
        await screen.press("4")
        await screen.shows("sleepy is paused, 7 messages waiting", "broken has 3 dead letters")
        await screen.filter("sleepy is")
        await screen.press("enter")
        await screen.shows("what to do: `fila-cluster queue resume sleepy`")
        await screen.press("escape")
        await screen.hides("what to do")

    watch(shop, main)


def test_help_and_how_often_it_looks(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.shows("what its weight entitles it to")
        await screen.press("escape")
        await screen.hides("what its weight entitles it to")
        await screen.press("minus")
        await screen.shows("every 0.5s")
        await screen.press("minus")
        await screen.shows("every 1s")
        await screen.press("plus", "plus", "plus")
        await screen.shows("every 0.5s")
        await screen.press("q")
        await screen.until(lambda: not screen.top.is_running, "it ends")
        assert screen.top.return_code == 0

    watch(shop, main)


def test_queues_that_a_shard_leaves_out_are_listed_too(cluster: Cluster):
    async def make() -> None:
        async with AsyncClient(cluster.endpoint, timeout=PATIENCE_S) as client:
            await asyncio.gather(*(client.create_queue(f"q-{number:03d}") for number in range(501)))
            await asyncio.gather(*(client.enqueue(f"q-{number:03d}", b"") for number in range(501)))

    async def main(screen: Screen) -> None:
        await screen.shows("queues 501", "depth 501", "of 501")
        await screen.press("4")
        await screen.shows("2 more are not shown")

    asyncio.run(make())  # 1,002 with those of dead letters
    watch(cluster, main)


# --- actions ----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_if_that_is_meant_and_resumed(shop: Cluster):
    async def main(screen: Screen) -> None:
        with shop.client() as client:
            await screen.shows("orders")
            await screen.press("p")
            await screen.shows("Pause orders?")
            await screen.press("n")
            await screen.hides("Pause orders?")
            assert not client.queue_stats("orders").paused
            await screen.press("p")
            await screen.shows("Pause orders?")
            await screen.press("y")
            await screen.shows("orders is paused")
            assert client.queue_stats("orders").paused
            await screen.until(lambda: screen.line("orders ")[1:2] == ["paused"], "the list shows it")
            await screen.press("r")
            await screen.shows("orders goes on")
            assert not client.queue_stats("orders").paused

    watch(shop, main)


def test_a_fairness_key_is_paused_and_resumed(shop: Cluster):
    async def main(screen: Screen) -> None:
        def paused() -> list[str]:
            with shop.client() as client:
                return [key.fairness_key for key in client.queue_stats("orders").keys if key.paused]

        await screen.shows("tenant-1")
        await screen.filter("tenant-1")
        await screen.press("p")
        await screen.shows("Pause fairness key 'tenant-1' of orders?")
        await screen.press("y")
        await screen.shows("'tenant-1' of orders is paused")
        assert paused() == ["tenant-1"]
        await screen.press("r")
        await screen.shows("goes on")
        assert paused() == []

    watch(shop, main, queue="orders")


def test_dead_letters_are_sent_back_if_that_is_meant(shop: Cluster):
    async def main(screen: Screen) -> None:
        with shop.client() as client:
            await screen.shows("broken")
            await screen.filter("broken")
            await screen.press("d")
            await screen.shows("Send 3 dead letters of broken.dlq back")
            await screen.press("enter")
            await screen.hides("Send 3")
            assert client.queue_stats("broken.dlq").pending == 3
            await screen.press("d")
            await screen.shows("Send 3 dead letters")
            await screen.press("y")
            await screen.shows("redriven: 3 of broken.dlq")
            assert (client.queue_stats("broken").pending, client.queue_stats("broken.dlq").pending) == (3, 0)
            await screen.press("d")
            await screen.shows("broken.dlq has nothing to send back")
            client.purge_queue("broken")
            break_down(client, 3)  # as it was

    watch(shop, main)


def test_why_a_queue_and_a_key_wait(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("sleepy")
        await screen.filter("sleepy")
        await screen.press("w")
        await screen.shows("why sleepy waits", "queue_paused")
        await screen.press("escape")
        await screen.hides("why sleepy waits")
        await screen.press("enter")
        await screen.shows("keys of sleepy", "default")
        await screen.press("enter")
        await screen.shows("why fairness key 'default' of sleepy waits", "queue_paused")

    watch(shop, main)


def test_an_error_is_a_line_and_it_looks_again_at_once(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("brief")
        await screen.filter("brief")
        with shop.client() as client:
            client.delete_queue("brief")
        await screen.press("r")
        await screen.shows("no queue 'brief'")
        await screen.until(lambda: not any(line.startswith("brief ") for line in screen.listed[1:3]), "the list is new")

    with shop.client() as client:
        client.create_queue("brief")
    watch(shop, main, interval_s=600)


def test_keys_that_need_something_chosen_say_so(shop: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("orders")
        await screen.press("3")
        await screen.shows("worker-0")
        await screen.press("d")
        await screen.shows("choose a queue or a fairness key first")

    watch(shop, main)


# --- what is down -----------------------------------------------------------------------------------------------------


def test_a_broker_that_is_down_has_no_numbers_until_it_is_back(cluster: Cluster):
    async def main(screen: Screen) -> None:
        await screen.shows("orders", "depth 3 ")
        supervisor = psutil.Process(cluster.supervisor.pid)
        supervisor.suspend()
        os.kill(cluster.router_pid(), signal.SIGKILL)
        await screen.shows("broker is down: ")
        assert "orders" not in screen.text
        assert "depth" not in screen.text
        supervisor.resume()
        await screen.shows("orders", "depth 3 ")

    with cluster.client() as client:
        client.create_queue("orders")
        client.enqueue_many("orders", [Message(b"")] * 3)
    watch(cluster, main)


def test_a_worker_that_is_down_leaves_names_without_numbers(tmp_path: Path):
    names = [next(name for name in map("q{}".format, range(100)) if shard_of(name, 2) == shard) for shard in (0, 1)]

    async def main(screen: Screen) -> None:
        await screen.shows(*names, "depth 4 ")
        supervisor = psutil.Process(cluster.supervisor.pid)
        supervisor.suspend()
        os.kill(cluster.worker_of(0).pid, signal.SIGKILL)
        await screen.shows("shards 1/2:", "shard 0 waits for", "depth 2 ")
        assert screen.line(names[0])[1:4] == ["down", "–", "–"]
        assert screen.line(names[1])[1:3] == ["unread", "2"]
        supervisor.resume()
        await screen.shows("workers 2/2", "depth 4 ")

    with running(tmp_path / "data", workers=2) as cluster:
        with cluster.client() as client:
            for name in names:
                client.create_queue(name)
                client.enqueue_many(name, [Message(b"")] * 2)
        watch(cluster, main)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_snapshot_for_programs(shop: Cluster):
    words = ["--endpoint", shop.endpoint, "--json", "top", "--interval", "100ms", "--queue", "orders"]
    done = subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=60, check=True)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["summary"]["workers_up"] == 2
    assert told["summary"]["rates"]["enqueued"] == 0
    assert {row["name"]: row["pending"] for row in told["queues"]}["orders"] == 30
    assert [row["state"] for row in told["workers"]] == ["up", "up"]
    assert [row["share_due"] for row in told["queue"]["keys"]] == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    assert {concern["code"] for concern in told["concerns"]} >= {"paused", "dead_letters"}


def test_a_snapshot_of_what_is_not_there_is_an_error(shop: Cluster):
    words = ["--endpoint", shop.endpoint, "--json", "top", "--interval", "100ms", "--queue", "nowhere"]
    done = subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: no queue 'nowhere'")
    assert done.stderr.count("\n") == 1


def test_without_a_terminal_it_says_what_to_do(shop: Cluster):
    done = subprocess.run(
        command("--endpoint", shop.endpoint, "top"),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: top needs a terminal; `fila-cluster --json top` prints one snapshot instead\n"


def is_whole(seen: list[str], lines: int) -> bool:
    """Whether a screen has all that belongs on it: a terminal is painted piece by piece."""
    head = seen[0].startswith("fila-cluster ") and any("enqueued 0/s" in line for line in seen[:4])
    titles, first = seen[6].split()[:1], seen[7].split()[:3]
    return head and titles == ["queue"] and first == ["orders", "unread", "30"] and "q quit" in seen[lines - 1]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (140, 40)])
def test_in_a_real_terminal(shop: Cluster, columns: int, lines: int):
    require(TMUX)
    words = command("--endpoint", shop.endpoint, "top", "--interval", "200ms")
    with terminal(words, columns, lines) as screen:
        eventually(lambda: is_whole(screen.screen().split("\n"), lines), "everything is drawn, at its place")
        screen.press("Enter")
        eventually(lambda: "tenant-2" in screen.screen(), "the keys are shown")
        screen.press("?")
        eventually(lambda: "entitles" in screen.screen(), "help is shown")
        screen.press("Escape")
        eventually(lambda: "entitles" not in screen.screen(), "help is gone")
        screen.press("q")
        eventually(lambda: "exit code 0" in screen.screen(), "it ends")
        assert "fairness key" not in screen.screen()


def test_a_terminated_one_leaves_the_terminal_as_it_was(shop: Cluster):
    require(TMUX)
    words = command("--endpoint", shop.endpoint, "top", "--interval", "200ms")
    with terminal(words) as screen:
        eventually(lambda: "orders" in screen.screen(), "the queues are shown")
        (running_top,) = (
            each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[-len(words) :] == words
        )
        running_top.terminate()
        eventually(lambda: "exit code 0" in screen.screen(), "it ends")
        assert "orders" not in screen.screen()


def test_a_snapshot_looks_twice_so_that_there_are_rates(shop: Cluster):
    told = asyncio.run(take_snapshot(lambda timeout: AsyncClient(shop.endpoint, timeout=timeout), 0.1, None))
    assert told["summary"]["rates"] is not None
    assert "queue" not in told

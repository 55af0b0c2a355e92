"""The program, from its start to its end: a loop that asks, and keys that act."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType

from fila_cluster.client import AsyncClient
from fila_cluster.figures import counted
from fila_cluster.ops.top import dialogs
from fila_cluster.ops.top.board import Board, banner
from fila_cluster.ops.top.columns import printable
from fila_cluster.ops.top.dialogs import HELP, ActionTarget, Question, TextPage
from fila_cluster.ops.top.poller import ANSWER_S_MAX, Poller, snapshot
from fila_proto_zmq.errors import FilaError

INTERVALS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""The choices of ``+`` and ``-``."""


class Top(App[None]):
    """The program. ``poller`` asks, ``client`` acts; ``queue`` is the one whose keys are shown first, if any."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", show=False),
        Binding("r", "resume", show=False),
        Binding("d", "redrive", show=False),
        Binding("w", "why", show=False),
        Binding("plus,equals_sign", "hasten(-1)", show=False),
        Binding("minus", "hasten(1)", show=False),
        Binding("question_mark,h", "help_page", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(self, poller: Poller, client: AsyncClient, interval_s: float, queue: str | None = None) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colours, whether they are dark or light
        self.poller, self.client = poller, client
        self.interval_s = interval_s
        self.board = Board(queue)
        self._look_now = asyncio.Event()

    def get_default_screen(self) -> Board:
        """Return the screen below all dialogs."""
        return self.board

    def on_mount(self) -> None:
        """Start the loop."""
        self.run_worker(self._keep_looking())

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            self._look_now.clear()
            await self.poller.look(self.board.queue if self.board.view == "keys" else None)
            self._show()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), self.interval_s)

    def _show(self) -> None:
        poller = self.poller
        lines = banner(poller.picture, poller.why_not, self.client.endpoint, self.interval_s)
        self.board.show(lines, poller.picture, poller.close)

    def on_board_turned(self, _: Board.Turned) -> None:
        """Ask at once, because another queue's keys may be shown."""
        if self.board.view == "keys":
            self._look_now.set()

    def on_board_opened(self, _: Board.Opened) -> None:
        """Show more of a key, or of a concern."""
        if self.board.view == "keys":
            self.action_why()
        elif self.board.view == "attention" and (concern := self.board.grid.listing.chosen):
            self.push_screen(TextPage(concern.code, f"{printable(concern.text)}\n\nwhat to do: {printable(concern.action)}"))

    def action_hasten(self, step: int) -> None:
        """Ask more often (-1), or more rarely."""
        beyond = [each for each in INTERVALS_S if (each < self.interval_s if step < 0 else each > self.interval_s)]
        if beyond:
            self.interval_s = beyond[-1] if step < 0 else beyond[0]
            self._look_now.set()

    def action_help_page(self) -> None:
        """Show the meaning of the keys."""
        self.push_screen(TextPage("fila-cluster top", HELP))

    # --- acting -------------------------------------------------------------------------------------------------------

    @work
    async def action_pause(self) -> None:
        """Pause the chosen queue or key, after a question."""
        if target := self._target():
            question = f"Pause {target}? Nothing more of it is delivered until it is resumed."
            if await self.push_screen_wait(Question(question)):
                await self._answered(dialogs.pause(self.client, target))

    @work
    async def action_resume(self) -> None:
        """Resume the chosen queue or key."""
        if target := self._target():
            await self._answered(dialogs.resume(self.client, target))

    @work
    async def action_redrive(self) -> None:
        """Send the dead letters of the queue back, after a question."""
        if target := self._target():
            await self._answered(self._redrive(dialogs.dead_letters_of(target.queue)))

    async def _redrive(self, dead_letters: str) -> str:
        count = await dialogs.redrivable(self.client, dead_letters)
        if not count:
            return f"{dead_letters} has nothing to send back"
        question = f"Send {counted(count, 'dead letter')} of {dead_letters} back to the queues they came from?"
        if not await self.push_screen_wait(Question(question)):
            return ""
        self.board.say(f"sending back {counted(count, 'dead letter')} of {dead_letters} …")
        return await dialogs.redrive(self.client, dead_letters)

    @work
    async def action_why(self) -> None:
        """Show why the chosen queue or key waits."""
        if target := self._target():
            await self._answered(self._why(target))

    async def _why(self, target: ActionTarget) -> str:
        lines = (await dialogs.why(self.client, target)).split("\n")
        self.push_screen(TextPage(f"why {target} waits", "\n".join(map(printable, lines))))
        return ""

    def _target(self) -> ActionTarget | None:
        """Return the target of the keys; without one, show a line that asks for a choice."""
        target = self.board.target()
        if target is None:
            self.board.say("choose a queue or a fairness key first", bad=True)
        return target

    async def _answered(self, asked: Awaitable[str]) -> None:
        """Show the result of a call; an error is a line, too."""
        try:
            self.board.say(await asked)
        except FilaError as error:
            self.board.say(str(error), bad=True)
        self._look_now.set()


Connect = Callable[[float], AsyncClient]
"""Make a client whose calls take this many seconds at most."""

ACT_S_MAX = 10.0


async def show_live(connect: Connect, interval_s: float, queue: str | None) -> None:
    """Run until the user quits. The loop has a client of its own: it gives up sooner than actions do."""
    async with connect(ANSWER_S_MAX) as watching, connect(ACT_S_MAX) as acting:
        top = Top(Poller(watching), acting, interval_s, queue)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, top.exit)
        await top.run_async()


async def take_snapshot(connect: Connect, interval_s: float, queue: str | None) -> dict[str, Any]:
    """Ask, and return the snapshot. Raises :class:`FilaError`."""
    async with connect(ANSWER_S_MAX) as watching:
        return await snapshot(Poller(watching), interval_s, queue)

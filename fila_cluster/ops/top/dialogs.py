"""The dialogs over the lists: a question, a page to read, the meaning of keys and columns."""

from typing import ClassVar, Final, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from fila_cluster.client import AsyncClient
from fila_cluster.ops.top.columns import printable
from fila_proto_zmq.names import dead_letter_name, is_dead_letter

HELP: Final = """\
1 2 3 4   queues · keys of the chosen queue · workers · attention
enter     more: a queue's keys, why a key waits, what to do
↑ ↓ …     move (or j k g G PgUp PgDn)      + -  look more often, more rarely
← →       sort by the column beside (or < >), s: the other way round;
          a click on a title does both
/         only lines with this in their names; escape: all again
.         dead letter queues, too
p r       pause (asks first), resume: the queue; in view 2 the fairness key
d         send the dead letters of the queue back (asks first)
w         why it waits                     q    quit

queues    pend: ready · leased: with consumers · delay: not due yet
          old: age of the oldest pending one · cons: consumers
          down, silent: its shard does not answer · unread: messages
          and no consumer · breaker: its hooks keep failing
keys      due: what its weight entitles it to · got: of all deliveries
workers   cpu: of one core · turn, commit: p99 = 99 % were no longer
–         not known: this is the first look, or counters started over
"""


_BOX = """
    align: center middle;
    & > #box { width: 100%; max-width: 100; height: auto; max-height: 100%; border: round ansi_blue; padding: 0 1; }
    & #keys { text-style: dim; }
"""


class Question(ModalScreen[bool]):
    """Asks before an action. Only ``y`` confirms: enter is pressed too easily."""

    DEFAULT_CSS = f"Question {{ {_BOX} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", show=False),
        Binding("n,escape,q,enter", "dismiss(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Lay out the question, and the keys of the answers."""
        with Vertical(id="box"):
            yield Static(self.text, markup=False)
            yield Static("\ny: yes   n: no", id="keys", markup=False)


class TextPage(ModalScreen[None]):
    """A text to read."""

    DEFAULT_CSS = f"TextPage {{ {_BOX} & #text {{ height: auto; max-height: 100%; }} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,space,question_mark,w", "dismiss(None)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading, self.text = title, text

    def compose(self) -> ComposeResult:
        """Lay out the text, to be scrolled."""
        with VerticalScroll(id="box") as box:
            box.border_title = self.heading.replace("[", "(").replace("]", ")")  # titles are markup
            yield Static(self.text, id="text", markup=False)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#box").scroll_relative(y=by, animate=False)


class ActionTarget(NamedTuple):
    """A queue, or one of its fairness keys."""

    queue: str
    fairness_key: str | None = None

    def __str__(self) -> str:
        key = "" if self.fairness_key is None else f"fairness key {printable(self.fairness_key)!r} of "
        return f"{key}{printable(self.queue)}"


async def pause(client: AsyncClient, target: ActionTarget) -> str:
    """Stop deliveries."""
    await client.pause(target.queue, fairness_key=target.fairness_key)
    return f"{target} is paused: r resumes it"


async def resume(client: AsyncClient, target: ActionTarget) -> str:
    """Resume deliveries."""
    await client.resume(target.queue, fairness_key=target.fairness_key)
    return f"{target} goes on"


def dead_letters_of(queue: str) -> str:
    """Return the name of a queue's dead letter queue; its own, if it is one."""
    return queue if is_dead_letter(queue) else dead_letter_name(queue)


async def redrivable(client: AsyncClient, dead_letters: str) -> int:
    """Return how many dead letters could go back: the pending ones. 0 without such a queue."""
    rows = await client.list_queues(dead_letters)
    return next((row.pending for row in rows if row.name == dead_letters), 0)


async def redrive(client: AsyncClient, dead_letters: str) -> str:
    """Send all dead letters back to the queues they came from."""
    count = await client.redrive(dead_letters)
    return f"redriven: {count:,} of {dead_letters} went back to where they came from"


async def why(client: AsyncClient, target: ActionTarget) -> str:
    """Return the explanation of why it waits."""
    return str(await client.why(target.queue, fairness_key=target.fairness_key))

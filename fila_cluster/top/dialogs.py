"""What comes up over the lists: a question, a page to read."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_BOX = """
    align: center middle;
    & > #box { width: 100%; max-width: 100; height: auto; max-height: 100%; border: round ansi_blue; padding: 0 1; }
    & #keys { text-style: dim; }
"""


class Question(ModalScreen[bool]):
    """Asks before something is done. Only ``y`` does it: enter is pressed too easily."""

    DEFAULT_CSS = f"Question {{ {_BOX} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", show=False),
        Binding("n,escape,q,enter", "dismiss(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """The question, and how to answer it."""
        with Vertical(id="box"):
            yield Static(self.text, markup=False)
            yield Static("\ny: yes   n: no", id="keys", markup=False)


class Page(ModalScreen[None]):
    """A text to read."""

    DEFAULT_CSS = f"Page {{ {_BOX} & #text {{ height: auto; max-height: 100%; }} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,space,question_mark,w", "dismiss(None)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading, self.text = title, text

    def compose(self) -> ComposeResult:
        """Its text, to be scrolled."""
        with VerticalScroll(id="box") as box:
            box.border_title = self.heading.replace("[", "(").replace("]", ")")  # titles are markup
            yield Static(self.text, id="text", markup=False)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#box").scroll_relative(y=by, animate=False)

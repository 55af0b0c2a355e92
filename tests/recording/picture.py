"""Draw what terminals showed as one SVG that plays again and again. It loads nothing: no script, no font, no other file."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.recording.terminal import COLUMNS, ROWS, Shown

CHARACTER, LINE, MARGIN, TOP = 8.4, 19, 16, 40
TYPED_S = 0.035
BEFORE_S, AFTER_S = 0.5, 1.1
RUNS_S_MAX = 1.5
"""A command that takes longer is shown as if it took so long."""
READ_S = 3.5
"""How long the last screen of a scene stays."""
PROMPT = "$ "
INK, PAPER, FAINT = "#d8dee9", "#1b1f27", "#7d8798"
COLORS = {
    "red": "#f07178",
    "green": "#a6da95",
    "yellow": "#eed49f",
    "blue": "#8aadf4",
    "magenta": "#c6a0f6",
    "cyan": "#8bd5ca",
}


@dataclass(frozen=True)
class Scene:
    """One screen: a title, and the commands that are typed one after the other. A command ``# …`` is a remark."""

    title: str
    shown: Sequence[Shown]


@dataclass(frozen=True)
class _Piece:
    """Some SVG that is seen from one moment to another."""

    svg: str
    begins_s: float
    ends_s: float


def draw(scenes: Sequence[Scene]) -> str:
    """Return the picture. :class:`ValueError` if a scene has more lines than a screen."""
    pieces: list[_Piece] = []
    now = 0.0
    commands = escape("; ".join(shown.command for scene in scenes for shown in scene.shown), quote=False)
    for scene in scenes:
        scene_pieces, now = _pieces(scene, now)
        pieces += scene_pieces
    width, height = round(2 * MARGIN + COLUMNS * CHARACTER), TOP + ROWS * LINE + MARGIN
    moments = sorted({(piece.begins_s, piece.ends_s) for piece in pieces})
    names = {moment: f"m{number}" for number, moment in enumerate(moments)}
    rules = "".join(_rule(names[moment], *moment, now) for moment in moments)
    body = "\n".join(f'<g class="{names[piece.begins_s, piece.ends_s]}">{piece.svg}</g>' for piece in pieces)
    dots = "".join(f'<circle cx="{MARGIN + 6 + 18 * index}" cy="20" r="5" fill="{FAINT}"/>' for index in range(3))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>fila-cluster in a terminal</title>
<desc>{commands}</desc>
<style>
text{{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:{INK};white-space:pre}}
{rules}</style>
<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>
{dots}
{body}
</svg>
"""


def _rule(name: str, begins_s: float, ends_s: float, total_s: float) -> str:
    """Return the style of what is seen from one moment to another. Where nothing moves, the last screen is seen."""
    begins, ends = 100 * begins_s / total_s, 100 * ends_s / total_s
    last = "" if ends >= 100 else f"{ends:.2f}%{{opacity:0}}"
    first = "" if begins == 0 else "0%{opacity:0}"
    still = 0 if ends < 100 else 1
    return (
        f".{name}{{opacity:{still};animation:{name} {total_s:.2f}s step-end infinite}}\n"
        f"@keyframes {name}{{{first}{begins:.2f}%{{opacity:1}}{last}}}\n"
    )


def _pieces(scene: Scene, now: float) -> tuple[list[_Piece], float]:
    """Return the pieces of a scene that begins now, and when it ends."""
    seen: list[tuple[str, float]] = [(_text(scene.title, MARGIN + 70, 25, FAINT), now)]
    row = 0
    for shown in scene.shown:
        is_remark = shown.command.startswith("#")
        seen.append((_at(row, 0, shown.command, FAINT) if is_remark else _at(row, 0, PROMPT, COLORS["green"]), now))
        now += BEFORE_S
        if not is_remark:
            for column, character in enumerate(shown.command, len(PROMPT)):
                now += TYPED_S
                if character != " ":
                    seen.append((_at(row, column, character, INK), now))
            now += min(shown.seconds, RUNS_S_MAX)
        row += 1
        for line in shown.output.split("\n") if shown.output else ():
            seen.append((_line(row, line), now))
            row += 1
        now += AFTER_S
    if row > ROWS:
        raise ValueError(f"the scene {scene.title!r} has {row} lines, and a screen {ROWS}: show less")
    end = now + READ_S - AFTER_S
    return [_Piece(svg, begins, end) for svg, begins in seen if svg], end


def _line(row: int, line: str) -> str:
    """Return a line of output in its colours."""
    column, drawn = 0, ""
    console = Console(width=COLUMNS, color_system="standard", force_terminal=True)
    for segment in Text.from_ansi(line).render(console):
        if segment.text.strip():
            style = segment.style or Style()
            color = COLORS.get(style.color.name.removeprefix("bright_"), INK) if style.color else FAINT if style.dim else INK
            drawn += _at(row, column, segment.text.rstrip(), color, bold=bool(style.bold))
        column += len(segment.text)
    if column > COLUMNS and len(line.rstrip()) > COLUMNS:
        raise ValueError(f"{line!r} is wider than {COLUMNS} columns: show less")
    return drawn


def _at(row: int, column: int, text: str, color: str, *, bold: bool = False) -> str:
    """Return text at a place of the screen. It has the width of its columns in any font."""
    left = column + len(text) - len(text.lstrip())
    return _text(text.strip(), MARGIN + left * CHARACTER, TOP + (row + 1) * LINE, color, bold=bold)


def _text(text: str, x: float, y: float, color: str, *, bold: bool = False) -> str:
    style = ([] if color == INK else [f"fill:{color}"]) + (["font-weight:bold"] if bold else [])
    look = f' style="{";".join(style)}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.0f}" textLength="{len(text) * CHARACTER:.1f}"{look}>{escape(text, quote=False)}</text>'

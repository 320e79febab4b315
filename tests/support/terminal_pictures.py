"""The terminal pictures of the documentation, drawn from reports of real runs.

`make pictures` writes them again.
"""

from __future__ import annotations

import dataclasses
import io
import json
import time
from pathlib import Path
from typing import Any

from rich.terminal_theme import MONOKAI

from relaax.cli.live.top import service_tables
from relaax.cli.run.panel import ProgressPanel
from relaax.cli.run.plan import make_plan
from relaax.cli.run.progress import Progress, ReplayProgress
from relaax.plain_console import PlainConsole

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
DATA = ROOT / "tests" / "data" / "screens"
WIDTHS = (80, 120)
# Code hosts do not load web fonts. Each text has an explicit length, so that any monospace font fits.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def reported(run: str) -> dict[str, Any]:
    """Return the report of a run: `progress` and `replay` at a `time`, or `top`."""
    content: dict[str, Any] = json.loads((DATA / f"{run}.json").read_text("utf-8"))
    return content


def panel_of(run: str) -> ProgressPanel:
    """Return the panel of a run."""
    seen = reported(run)
    progress = Progress(**seen["progress"])
    age = seen["time"] - seen["progress"]["checkpoint_time"]
    progress = dataclasses.replace(progress, checkpoint_time=time.time() - age)
    replay = ReplayProgress(**seen["replay"]) if seen["replay"] else None
    return ProgressPanel(make_plan(run, []), progress, replay)


def pictures() -> dict[str, str]:
    """Return the content of each SVG file, by its name in docs/images."""
    shown = {
        "panel": ("relaax run da3c_gym_cartpole", panel_of("da3c_gym_cartpole")),
        "top": ("relaax top", service_tables(reported("gorila_distributed_gym_cartpole")["top"])),
    }
    return {
        f"{name}-{width}.svg": svg(content, title, f"{name}-{width}", width)
        for name, (title, content) in shown.items()
        for width in WIDTHS
    }


def svg(content: Any, title: str, name: str, width: int) -> str:
    """Return the SVG of a terminal of this width that shows `content`."""
    console = PlainConsole(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=False,
        legacy_windows=False,
    )  # fmt: skip
    console.print(content, highlight=False)
    text = console.export_svg(title=title, theme=MONOKAI, code_format=_FORMAT, unique_id=name)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8")

"""Draw the terminals that the README shows: `make_pictures.py [DIRECTORY]`.

Real commands run in a real terminal; what it then shows becomes DIRECTORY/*.svg, by default
docs/pictures.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURES_DIR = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 90
# Rich's own frame would load a font from the network.
FRAME = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FRAME = FRAME.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")

TRAIN = """\
import time

import torch
import torch.distributed as dist


def train(steps: int) -> float:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} trains", flush=True)
    total = torch.ones(1)
    dist.all_reduce(total)
    for step in range(steps):
        if rank == 2 and step == 3:
            raise ValueError(f"step {step}: the loss is not a number")
        time.sleep(0.2)
    return total.item()
"""
PICTURES = {
    "launch": (
        "phalanx launch job.py:train --workers-per-host 4 --show all -- --steps 3",
        "phalanx launch job.py:train --workers-per-host 4 -- --steps 9",
    ),
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES_DIR
    target.mkdir(exist_ok=True)
    for name, commands in PICTURES.items():
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "job.py").write_text(TRAIN)
            screens = [(command, run(command, place)) for command in commands]
        draw(screens, name, target / f"{name}.svg")


def run(command: str, place: str) -> str:
    """What a terminal shows of a command, with its colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ["TERM"] = "xterm-256color"
        environ["XDG_STATE_HOME"] = os.path.join(place, ".state")
        os.chdir(place)
        words = command.split()
        os.execvpe(words[0], words, environ)
    shown = b""
    try:
        while data := os.read(terminal, 1 << 16):
            shown += data
    except OSError:
        pass  # how the end of a terminal reads
    os.waitpid(pid, 0)
    os.close(terminal)
    # What is left on the screen: a line that was started over is its last state.
    text = shown.decode().replace("\r\n", "\n").replace(f"{place}/", "")
    return "\n".join(re.split(r"\r(?:\x1b\[2?K)?", line)[-1] for line in text.split("\n"))


def draw(screens: list[tuple[str, str]], name: str, path: Path) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for number, (command, shown) in enumerate(screens):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(shown.strip("\n")))
    svg = console.export_svg(title="", theme=MONOKAI, code_format=FRAME, unique_id=f"t-{name}")
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(path)


if __name__ == "__main__":
    main()

"""`python -m phalanx.compat NAME [NAME…] -- PROGRAM [ARGUMENT…]`: run a program on our modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from phalanx import _aliases
from phalanx._system.near_files import current_directory, no_such_file
from phalanx._worker.script import run_here
from phalanx.errors import ConfigError

USAGE = """\
usage: python -m phalanx.compat NAME [NAME…] -- PROGRAM.py [ARGUMENT…]
       python -m phalanx.compat NAME [NAME…] -- -m MODULE [ARGUMENT…]

Run a program that imports NAME, on Phalanx: its imports of NAME give phalanx.compat.NAME.
Names: """


def main(words: Sequence[str]) -> None:
    """Run what the command line says. Raises `SystemExit` for mistakes in it, and the program's."""
    if words and words[0] in ("-h", "--help"):
        print(USAGE + ", ".join(_aliases.known()))
        return
    names, program = _split(words)
    try:
        cwd = current_directory()
        _aliases.install(*names)
    except ConfigError as error:
        _refuse(str(error))
    is_module = program[0] == "-m"
    if is_module:
        program = program[1:]
        if not program:
            _refuse("-m needs the name of a module.")
    elif not os.path.exists(program[0]):
        _refuse(no_such_file(program[0]))
    sys.path[0] = cwd if is_module else os.path.dirname(os.path.abspath(program[0]))
    # The program is `__main__`, with nothing of ours in it, and without our `__spec__`.
    sys.modules["__main__"] = ModuleType("__main__")
    run_here("module" if is_module else "script", program[0], program[1:])


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names, and the program with its arguments; `--` may be left out before a file."""
    names = list(words)
    if "--" in words:
        at = list(words).index("--")
        names, program = list(words[:at]), list(words[at + 1 :])
    else:
        at = next((i for i, w in enumerate(words) if w == "-m" or w.endswith(".py")), len(words))
        names, program = list(words[:at]), list(words[at:])
    if not names:
        _refuse("say which names the program imports.")
    if not program:
        _refuse("say which program to run, after --.")
    return names, program


def _refuse(message: str) -> NoReturn:
    print(f"phalanx.compat: {message}\n\n{USAGE}{', '.join(_aliases.known())}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])

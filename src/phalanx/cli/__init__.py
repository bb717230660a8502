"""The command line: one module per verb, loaded only when it is asked for.

A verb has `HELP`, its line in the overview, and `main(arguments) -> exit code`. It prints and never
decides. A user's mistake is one clear sentence and exit code 2, never a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import sys

VERBS = {
    "launch": "run a function of a file or module on every rank",
    "version": "print the version",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if verb == "--version":
        verb = "version"
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "See: phalanx --help"
        print(f"phalanx has no command {verb!r}. {hint}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"phalanx.cli.{verb}")
    code: int = module.main(arguments[1:])
    return code


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {text}" for name, text in VERBS.items())
    return f"""\
usage: phalanx COMMAND ...

Run a Python function on every rank, and bring everything home.

commands:
{verbs}

'phalanx COMMAND --help' says more about one of them."""

"""The command line: one module per verb, loaded only when it is asked for.

A verb's module has `main(arguments) -> exit code`. It prints and never decides. A user's mistake is
one clear sentence and exit code 2, never a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import NoReturn

VERBS = {
    "launch": "run a function of a file or module on every rank",
    "list": "what was launched",
    "status": "how an app stands",
    "log": "what an app's workers have printed",
    "cancel": "have an app end",
    "clean": "forget old apps",
    "hosts": "whether hosts are fit for a launch",
    "warm": "the agents that wait for the next command",
    "version": "print the version",
}


def run() -> NoReturn:
    """Run as the program. What was loaded may have imported torch, whose teardown is slow."""
    try:
        code = main()
        sys.stdout.flush()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        print("phalanx: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # Whoever reads has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except BaseException:  # noqa: BLE001 the user's file raised: shown as Python shows it
        sys.excepthook(*sys.exc_info())
        code = 1

    from phalanx.worker.leaving import leave

    leave(code, preloaded=frozenset())


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

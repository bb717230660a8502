"""TorchX's command: ours, with its session, and which shows and ends local apps as it does."""

from __future__ import annotations

import sys

from phalanx._cli import main as _main
from phalanx._cli.commands import list as _list
from phalanx._cli.commands import run as _run
from phalanx._runner import config
from phalanx.compat.torchx.runner.api import Runner

__all__ = ["main"]

_INFORMATION = ("-h", "--help", "--version")


def main(argv: list[str] | None = None) -> None:
    """Run a command.

    Args:
        argv: Its words; by default those of this process.

    Raises:
        SystemExit: It did not succeed, or only informs, as `--version` does.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    code = _main(
        words,
        {
            "run": lambda rest: _run.main(rest, _run.Habits(_make_runner, ends_local=True)),
            "list": lambda rest: _list.main(rest, _make_runner),
        },
    )
    if code or words[0] in _INFORMATION:
        raise SystemExit(code)


def _make_runner() -> Runner:
    made = Runner(settings=config.load())
    made.sends_workspace = True
    return made


if __name__ == "__main__":
    main()

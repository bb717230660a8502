"""`phalanx completion SHELL`: what a shell needs to complete commands, and what it asks for."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

from phalanx._cli import VERBS, parsing
from phalanx._cli.stdout_guard import stdout_to_stderr

_SCRIPTS = {
    "bash": """\
_phalanx() {
    local IFS=$'\\n'
    COMPREPLY=($(phalanx completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _phalanx phalanx
""",
    "zsh": """\
#compdef phalanx
_phalanx() {
    local -a found
    found=(${(f)"$(phalanx completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -- $found; else _files; fi
}
compdef _phalanx phalanx
""",
    "fish": """\
complete -c phalanx -a '(phalanx completion --words (commandline -opc)[2..] \
(commandline -ct) 2>/dev/null)'
""",
}
_APPS = ("status", "describe", "log", "cancel", "delete")


def main(arguments: list[str]) -> int:
    """Print the script for a shell; or, asked by one, the words that may come next."""
    if arguments[:1] == ["--words"]:
        with stdout_to_stderr():
            words = complete(arguments[1:])
        for word in words:
            print(word)
        return 0
    parser = parsing.make(
        "completion",
        "Print a script that completes commands, components, schedulers and apps.\n\n"
        'For bash, add to ~/.bashrc:  eval "$(phalanx completion bash)"',
    )
    parser.add_argument("shell", choices=sorted(_SCRIPTS))
    options = parser.parse_args(arguments)
    print(_SCRIPTS[options.shell], end="")
    return 0


def complete(words: list[str]) -> list[str]:
    """What may stand in place of the last of these words, which may be begun."""
    before, begun = words[:-1], words[-1] if words else ""
    known: list[str]
    if not before:
        known = [*VERBS, *_plugins()]
    elif before[-1] in ("-s", "--scheduler"):
        known = _schedulers()
    elif before[-1] == "--streams":
        known = ["combined", "stderr", "stdout"]
    elif before[0] == "run":
        known = _of_run(before[1:], begun)
    elif begun.startswith("-"):
        known = _flags(before[0])
    elif before[0] in ("runopts", "config"):
        known = _schedulers()
    elif before[0] in _APPS:
        known = _apps(running=before[0] == "cancel")
    else:
        known = []
    return sorted(word for word in set(known) if word.startswith(begun))


def _plugins() -> list[str]:
    from phalanx import _plugins as plugins
    from phalanx._cli import GROUP

    return [plugin.name for plugin in plugins.of(GROUP)]


def _schedulers() -> list[str]:
    from phalanx._schedulers.factories import get_scheduler_factories

    return list(get_scheduler_factories())


def _apps(*, running: bool) -> list[str]:
    from phalanx._registry.recorded_app import apps

    return [app.id for app in apps() if not running or not app.state.is_final]


def _flags(verb: str) -> list[str]:
    """The flags that a command's own help names."""
    if verb not in VERBS:
        return []
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        importlib.import_module(f"phalanx._cli.commands.{verb}").main(["--help"])
    lines = re.findall(r"^  (-.*?)(?:\s{2,}.*)?$", said.getvalue(), re.MULTILINE)
    return [flag for line in lines for flag in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", line)]


def _of_run(before: list[str], begun: str) -> list[str]:
    from phalanx._cli.commands.run import make_parser, split
    from phalanx._runner import catalog
    from phalanx.errors import PhalanxError

    parser = make_parser()
    try:
        wants_options = before[-1:] == ["-cfg"]
        own, _, component, _ = split(parser, before[:-1] if wants_options else before)
        if component is None:
            known = _options_of(parser.parse_args(own).scheduler)
            if wants_options:
                return [f"{name}=" for name in known]
            if begun.startswith("-"):
                return [*_flags("run"), *(f"--{name}" for name in known)]
            return [c.name for c in catalog.catalog().components]
        found = catalog.find(component)
    except (PhalanxError, SystemExit):
        return []
    return [p.flag for p in found.parameters.values()] if begun.startswith("-") else []


def _options_of(scheduler: str | None) -> list[str]:
    from phalanx._runner.runner import get_runner

    with get_runner() as runner:
        name = scheduler or runner.default_scheduler
        return [option.name for option in runner.scheduler_run_opts(name)]

"""What was said to `phalanx torchrun`, on the command line or by variables, flag by flag.

What it means together is for `torchrun_options`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from phalanx._core.suggestions import closest, did_you_mean
from phalanx._elastic.command.flags import FLAGS, GROUPS, switch
from phalanx.errors import ConfigError

_USAGE = "phalanx torchrun [FLAGS] SCRIPT [ARGUMENTS]"

_DESCRIPTION = """\
Run a script on every worker of this host, together with the hosts that run the same command. Takes
the flags and environment variables of torchrun. ARGUMENTS are passed to the script.

  phalanx torchrun --nproc-per-node gpu train.py --lr 0.1
  phalanx torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint host-0:29400 train.py
"""

_EPILOG = """\
Flags can be written with _ instead of -. Each flag except --numa-binding can be set by an
environment variable: PET_NPROC_PER_NODE=8, or 1 or 0 for flags without a value. The command line
takes precedence.
"""


@dataclass(frozen=True)
class GivenFlags:
    """What was said: a value for each flag, and where it came from."""

    values: Mapping[str, Any]
    script: str
    arguments: tuple[str, ...]
    typed: frozenset[str] = frozenset()
    """The flags of the command line."""
    from_environment: frozenset[str] = frozenset()

    def __getitem__(self, dest: str) -> Any:
        return self.values[dest]

    def quote(self, dest: str) -> str:
        """A flag and its value, as they were written."""
        flag = FLAGS[dest]
        if dest in self.from_environment:
            return f"{flag.variable}={self.values[dest]}"
        return f"--{flag.name} {self.values[dest]}"


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> GivenFlags:
    """What the command line and the environment say. Raises `ConfigError`; `SystemExit` for help.

    The variable of a flag that is on the command line is not looked at.
    """
    typed = _parse(list(arguments))
    script, rest = typed.pop("training_script"), typed.pop("training_script_args")
    values: dict[str, Any] = {}
    set_there: set[str] = set()
    for dest, flag in FLAGS.items():
        if dest in typed:
            values[dest] = typed[dest]
        elif flag.by_environment and flag.variable in environ:
            set_there.add(dest)
            try:
                how = flag.read if flag.metavar else switch
                values[dest] = how(environ[flag.variable])
            except argparse.ArgumentTypeError as error:
                raise ConfigError(f"{flag.variable}: {error}") from None
        else:
            values[dest] = flag.default
    return GivenFlags(values, script, tuple(rest), frozenset(typed), frozenset(set_there))


def make_parser() -> argparse.ArgumentParser:
    """A parser that gives what is on the command line, and nothing for what is not."""
    parser = _Parser(
        prog="phalanx torchrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.metavar:
                group.add_argument(
                    *flag.option_strings,
                    dest=flag.dest,
                    metavar=flag.metavar,
                    type=flag.read,
                    help=flag.help or argparse.SUPPRESS,
                )
            else:
                group.add_argument(
                    *flag.option_strings,
                    dest=flag.dest,
                    action="store_true",
                    default=argparse.SUPPRESS,
                    help=flag.help or argparse.SUPPRESS,
                )
    parser.add_argument("training_script", help=argparse.SUPPRESS)
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _parse(arguments: list[str]) -> dict[str, Any]:
    try:
        found, unknown = make_parser().parse_known_args(arguments)
    except argparse.ArgumentError as error:
        if error.argument_name is None and "required" in error.message:
            raise _no_script(arguments) from None
        flag = (error.argument_name or "").split("/")
        name = next((n for n in flag if n.startswith("--")), flag[0])
        raise ConfigError(f"{name}: {_sentence(error.message)}".removeprefix(": ")) from None
    if unknown:
        raise _unknown(unknown[0])
    return vars(found)


def _no_script(arguments: list[str]) -> ConfigError:
    try:  # a flag that we do not have is the likelier mistake
        _, unknown = make_parser().parse_known_args([*arguments, "script"])
    except argparse.ArgumentError:
        unknown = []
    if unknown:
        return _unknown(unknown[0])
    return ConfigError("missing script, as in: phalanx torchrun --nproc-per-node 2 train.py")


def _sentence(message: str) -> str:
    if message.startswith("expected one argument"):
        return "missing value."
    if message.startswith("ignored explicit argument"):
        return "takes no value."
    return message if message.endswith(".") else f"{message}."


_OTHER_NAMES = {
    "workers-per-host": "nproc-per-node",
    "workers": "nproc-per-node",
    "num-workers": "nproc-per-node",
}
"""What `phalanx launch` and others call some flags."""
_ENV = "it is a flag of torch.distributed.launch, and scripts always find LOCAL_RANK in os.environ"
_HOSTS = (
    "torchrun is started on every host. To name hosts: phalanx launch --hostnames, or phalanx run "
    "-s ssh"
)
_INSTEAD = {
    "use-env": f"Leave it out: {_ENV}.",
    "no-use-env": f"Leave it out: {_ENV}.",
    **dict.fromkeys(("hostnames", "hosts"), f"{_HOSTS}."),
}
"""What to do instead of flags that torchrun does not have either."""


def _unknown(word: str) -> ConfigError:
    flag = word.partition("=")[0]
    names = [f.name for f in FLAGS.values()]
    stem = flag.lstrip("-").replace("_", "-")
    if said := _INSTEAD.get(stem):
        return ConfigError(f"unknown flag {flag}. {said}")
    meant = (
        _OTHER_NAMES.get(stem)
        or next((name for name in names if len(stem) > 1 and name.startswith(stem)), None)
        or closest(stem, names, cutoff=0.7)
        or next((name for name in names if name[:4] == stem[:4]), None)
        or closest(stem, names, cutoff=0.5)
    )
    shown = None if meant is None else f"--{meant}"
    hint = did_you_mean(shown, "See: phalanx torchrun --help.", quoted=False)
    return ConfigError(f"unknown flag {flag}.{hint} Put flags of the script after the script.")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """What older Pythons say in this way, newer ones raise."""
        raise argparse.ArgumentError(None, message)

    def _get_option_tuples(self, option_string: str) -> Any:
        """Abbreviations, with both spellings of a flag as one, and none refused too early.

        argparse looks at the words behind the script too, which are not for us to refuse.
        """
        found: list[Any] = super()._get_option_tuples(option_string)
        actions = list(dict.fromkeys(match[0] for match in found))
        if len(actions) < 2:
            return found[:1]
        names = sorted(f"--{FLAGS[a.dest].name}" for a in actions if a.dest in FLAGS)
        return [(_Ambiguous(option_string, names), *found[0][1:])]


class _Ambiguous(argparse.Action):
    """An abbreviation of several flags: a mistake only if it is really one of ours."""

    def __init__(self, word: str, names: Sequence[str]) -> None:
        super().__init__([word], argparse.SUPPRESS, nargs="?")
        self.names = names

    def __call__(self, *_: object) -> NoReturn:
        word = self.option_strings[0].partition("=")[0]
        raise ConfigError(f"ambiguous flag {word}: could be {', '.join(self.names)}.")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Without the second spelling."""
        names = [name for name in action.option_strings if "_" not in name]
        return " ".join([", ".join(names), *([] if action.nargs == 0 else [str(action.metavar)])])

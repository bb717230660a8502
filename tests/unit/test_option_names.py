"""Options in messages, as a program writes them and as a shell does."""

import pytest

from phalanx._core.option_names import as_flags, as_scheduler_options


@pytest.mark.parametrize(
    ("said", "flags", "options"),
    [
        (
            "no x found. Set python=... to the path",
            "no x found. Set --python PATH to the path",
            "no x found. Set -cfg python=PATH to the path",
        ),
        ("with python=... (--python)", "with --python PATH", "with -cfg python=PATH"),
        ("back with fetch=[...].", "back with --fetch PATTERN.", "back with -cfg fetch=PATTERN."),
        ("or fetch=['ckpt/*']", "or --fetch ckpt/*", "or -cfg fetch=ckpt/*"),
        (
            "with workspace=..., or send nothing with workspace=None.",
            "with --workspace DIR, or send nothing with --workspace None.",
            "with --workspace DIR.",
        ),
        ("with interface=....", "with --interface INTERFACE.", "with interface=...."),
        ("env_file=... there", "--env-file FILE there", "-cfg env_file=FILE there"),
        *(("-cfg python=…",) * 3, ("my_python=None, x=None",) * 3, ("f(python='x')",) * 3),
    ],
)
def test_what_a_shell_s_user_reads(said, flags, options):
    """Nothing but advice changes: values that somebody gave stay as they are."""
    assert as_flags(said) == flags
    assert as_scheduler_options(said) == options

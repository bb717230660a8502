"""The one line that runs on another host, in real shells."""

import subprocess
import sys

import pytest

from phalanx._launcher.transport import targets


@pytest.mark.parametrize("shell", ["sh", "bash", "csh", "zsh", "fish", "mksh"])
def test_what_runs_there_means_the_same_to_every_shell(shell, tmp_path):
    """Login shells differ in what quotes, backslashes and exclamation marks mean."""
    import shutil

    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    bin_ = tmp_path / "it's a bin"
    bin_.mkdir()
    (bin_ / "python").symlink_to(sys.executable)
    target = targets.Target("x", (str(tmp_path / "none"), str(bin_ / "python")), ())
    (text,) = target.command("the-mark", "go")
    program = b"def go(incoming):\n    import os\n    os.write(4, incoming.read())\n"
    done = subprocess.run(
        [shell, "-c", text],
        input=b"%d\n" % len(program) + program + b"the rest",
        capture_output=True,
        timeout=30,
    )
    assert done.stdout == b"the-mark\nthe rest", done.stderr


def test_without_any_python_the_exit_code_says_so():
    """Not a message that has to be understood."""
    (text,) = targets.Target("x", ("/none", "no-such-python"), ()).command("m", "go")
    assert subprocess.run(["sh", "-c", text], stdin=subprocess.DEVNULL).returncode == 96

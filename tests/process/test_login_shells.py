"""The one line that runs on another host, in real shells."""

import subprocess
import sys

import pytest

from phalanx._launcher.transport import targets
from phalanx._launcher.transport.login import LoginEnded


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


@pytest.mark.parametrize("shell", ["bash", "sh", "perl"])
def test_what_is_no_python_is_said_to_be_none(shell):
    """Without the program that it was given; a Python's own words are shown."""
    flag = "-e" if shell == "perl" else "-c"
    target = targets.ssh_target("a", [shell], config_file=None, host_timeout=30)
    program = target.command("marker", "main")[-1].split("'import sys; sys", 1)[1].split("'")[0]
    words = [shell, flag, f"import sys; sys{program}"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = LoginEnded(done.stderr, target, code=done.returncode, begun=True).describe()
    assert said == f"{shell} is not a Python interpreter. It exited with code {done.returncode}."
    own = LoginEnded('  File "<string>", line 1\nSyntaxError: x', target, code=1, begun=True)
    assert "SyntaxError: x" in own.describe()

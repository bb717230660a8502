"""Breakpoints in workers: with a terminal they stop there, without one they say what to do."""

import inspect
import io
import os
import signal
import subprocess
import sys
import time

import pytest

import phalanx
from tests.conftest import phalanx_processes, wait_until
from tests.process.terminal import phalanx as at_terminal

SCRIPT = """
import os, sys
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
answer = 40 + rank
if sys.argv[1] == "all":
    breakpoint()
elif sys.argv[1] == "first":
    if rank == 0:
        breakpoint()
    dist.barrier()
else:
    dist.breakpoint(int(sys.argv[1]))
print(f"rank {rank} goes on", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)


def torchrun(*arguments):
    return at_terminal("torchrun", "--nproc-per-node", "2", "script.py", *arguments)


def ask(terminal, command, answer):
    """Type a command at the debugger's prompt, and wait for what it says to it."""
    seen = len(terminal.raw)
    terminal.type(f"{command}\r")
    wait_until(
        lambda: not terminal.wait_for("(Pdb) ") and answer in shown(terminal, seen),
        message=f"never shown: {answer!r} in {terminal.raw!r}",
    )


def shown(terminal, since=0):
    terminal._read(time.monotonic() + 0.05)
    return terminal.raw[since:].decode().replace("\r", "")


def by_breakpoint():
    answer = 1
    breakpoint()
    return answer


def by_pdb():
    import pdb

    pdb.set_trace()


def by_torch():
    import torch.distributed as dist

    dist.breakpoint(0)


def by_its_own_file():
    """A debugger as pytest's and others' are: it opens stdin by its path."""
    import pdb

    class Own(pdb.Pdb):
        def interaction(self, *args):
            with open("/dev/stdin") as sys.stdin:
                super().interaction(*args)

    Own().set_trace()


def post_mortem():
    import pdb

    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        pdb.post_mortem(error.__traceback__)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (by_breakpoint, "breakpoint()"),
        (by_pdb, "pdb.set_trace()"),
        (by_torch, "dist.breakpoint(0)"),
        (by_its_own_file, "Own().set_trace()"),
        (post_mortem, "_ = 1 / 0"),
    ],
)
def test_without_a_terminal_the_error_says_what_to_do(function, call):
    """Whatever the debugger was called by; its own frames are left out."""
    with pytest.raises(phalanx.NoTerminal, match="inline.*torchrun.*debugpy") as caught:
        phalanx.launch(function, workers_per_host=2, backend="gloo")
    text = "".join((str(caught.value), *caught.value.__notes__))
    lines, first = inspect.getsourcelines(function)
    at = first + [line.strip() for line in lines].index(call)
    assert f"stopped at a breakpoint ({__file__}, line {at}) without" in str(caught.value)
    assert "torch/distributed/__init__.py" not in text
    assert "BdbQuit" not in text
    assert "bdb.py" not in text


def test_spawned_workers_and_threads_say_it_too():
    """Also where the exception is not the function's."""

    def in_a_thread():
        import threading

        caught = []

        def run():
            try:
                breakpoint()
                caught.append(None)  # it stops at the next line
            except Exception as error:
                caught.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return caught[-1]

    (said,) = phalanx.launch(in_a_thread, workers_per_host=1, start_method="spawn")
    assert said.startswith("NoTerminal: rank 0 stopped at a breakpoint")


def test_a_debugger_that_is_given_its_commands_needs_no_terminal():
    """From a string, from a file: what works in Python works in a worker."""

    def given():
        import pdb

        told = io.StringIO()
        pdb.Pdb(stdin=io.StringIO("p 6 * 7\nc\n"), stdout=told).set_trace()
        sys.stdin = io.StringIO("p 5 * 7\nc\n")
        pdb.Pdb().set_trace()
        return told.getvalue()

    (told,) = phalanx.launch(given, workers_per_host=1)
    assert "42" in told


def test_a_notebook_cell_does_not_end_without_a_word():
    """IPython shows nothing of `BdbQuit`."""
    pytest.importorskip("IPython")
    cell = (
        "import phalanx\n"
        "def f():\n    breakpoint()\n    return 1\n"
        "def g():\n    import bdb\n    raise bdb.BdbQuit\n"
        "phalanx.launch({}, workers_per_host=1)\n"
    )
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for name in 'fg':\n    print(shell.run_cell({cell!r}.replace('{{}}', name)).error_in_exec)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "without a terminal" in done.stdout
    assert "raised bdb.BdbQuit" in done.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_at_a_terminal_stops_at_a_breakpoint_of_one_rank(rank):
    """As under torchrun: the prompt is seen, commands are read, the others wait."""
    terminal = torchrun(str(rank))
    terminal.wait_for("(Pdb) ")
    ask(terminal, "up", "dist.breakpoint(int(sys.argv[1]))")
    ask(terminal, "p answer", f"{40 + rank}\n(Pdb) ")
    assert "goes on" not in shown(terminal)
    terminal.type("c\r")
    assert terminal.finish() == 0
    assert "rank 0 goes on" in shown_at_the_end(terminal)
    assert "rank 1 goes on" in shown_at_the_end(terminal)


def test_an_ordinary_breakpoint_in_rank_0():
    """Changing a variable there changes it."""
    terminal = torchrun("first")
    terminal.wait_for("(Pdb) ")
    ask(terminal, "rank = 7", "(Pdb) ")
    terminal.type("c\r")
    assert terminal.finish() == 0
    assert "rank 7 goes on" in shown_at_the_end(terminal)


def test_ranks_that_all_stop_have_the_terminal_one_after_the_other():
    """No line that is typed goes to two of them."""
    terminal = torchrun("all")
    terminal.wait_for("(Pdb) ")
    ask(terminal, "p 'first', answer", "('first', 4")
    terminal.type("c\r")
    terminal.wait_for("has the terminal")
    ask(terminal, "p 'second', answer", "('second', 4")
    terminal.type("c\r")
    assert terminal.finish() == 0
    text = shown_at_the_end(terminal)
    assert ("('first', 40)" in text) != ("('first', 41)" in text)
    assert ("('second', 40)" in text) != ("('second', 41)" in text)
    assert ("('first', 40)" in text) == ("('second', 41)" in text)


def test_control_c_at_the_prompt_ends_everything():
    """Once is enough: pdb does not take it for itself."""
    terminal = torchrun("0")
    terminal.wait_for("(Pdb) ")
    terminal.type("\x03")
    assert terminal.finish() == 128 + signal.SIGINT
    wait_until(lambda: not phalanx_processes())


def test_quitting_ends_the_app():
    """As under torchrun: the script fails."""
    terminal = torchrun("first")
    terminal.wait_for("(Pdb) ")
    terminal.type("q\r")
    assert terminal.finish() == 1
    assert "BdbQuit" in shown_at_the_end(terminal)


def test_rank_0_reads_the_terminal_and_the_others_have_nothing(tmp_path):
    """`input()` asks once."""
    (tmp_path / "asks.py").write_text(
        "import os, sys\n"
        "print(os.environ['RANK'], sys.stdin.isatty(), flush=True)\n"
        "if sys.stdin.isatty():\n    print('hello', input('name? '))\n"
    )
    terminal = at_terminal("torchrun", "--nproc-per-node", "2", "asks.py")
    terminal.wait_for("name? ")
    terminal.type("you\r")
    assert terminal.finish() == 0
    lines = shown_at_the_end(terminal)
    assert "0 True" in lines
    assert "1 False" in lines
    assert "hello you" in lines


def test_in_the_background_the_terminal_is_left_alone(tmp_path):
    """It is the shell's then: a breakpoint must not take what is typed to it."""
    code = (
        "import os, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'phalanx', 'torchrun', '--nproc-per-node',"
        " '2', 'script.py', '0'], process_group=0)\n"
        "print('code', done.returncode)\n"
    )
    from tests.process.terminal import Terminal

    terminal = Terminal(sys.executable, "-c", code)
    terminal.wait_for("code 1")
    terminal.finish()
    assert "without a terminal" in shown_at_the_end(terminal)


def test_torchrun_without_a_terminal_says_it():
    """In a job script, in CI."""
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "torchrun", "--nproc-per-node", "2", "script.py", "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 1
    assert "rank 0 stopped at a breakpoint" in done.stderr
    assert "without a terminal" in done.stderr
    assert "Run it with 'phalanx torchrun' on a terminal, in the foreground; or" in done.stderr
    assert "start_method" not in done.stderr  # a script has no such option
    assert "BdbQuit" not in done.stderr + done.stdout


def shown_at_the_end(terminal):
    return terminal.raw.decode().replace("\r", "")


def test_what_to_do_is_said_once_and_in_flags_to_who_typed_a_command(tmp_path):
    """However many ranks come to it; the log says where it was."""
    (tmp_path / "job.py").write_text("def f():\n    breakpoint()\n    return 1\n")
    command = [sys.executable, "-m", "phalanx", "launch", "job.py:f", "--workers-per-host", "3"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stdout.count("--workers-per-host 1 --start-method inline") == 1
    assert done.stdout.count("debugpy.listen") == 1
    assert "workers_per_host" not in done.stdout
    assert "job.py, line 2)" in done.stdout

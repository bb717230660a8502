"""What people type first who know another tool, and nonsense: one sentence, at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx._cli import main

import phalanx
from tests.conftest import wait_until

JOB = """
import sys

def f(number: int = 1):
    return number
"""


@pytest.fixture(autouse=True)
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)


def command(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )


def is_one_sentence(done, *codes):
    """No traceback, no novel."""
    assert done.returncode in (codes or (2,)), done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stderr) < 400
    return done.stderr


@pytest.mark.parametrize(
    "flag", ["--nproc-per-node", "--nproc_per_node", "-n", "--num-workers", "--num_workers", "-np"]
)
@pytest.mark.parametrize("equals", [False, True])
def test_flags_of_other_tools_hint_at_ours(flag, equals):
    """Whatever a worker's number is called elsewhere."""
    said = [f"{flag}=2"] if equals else [flag, "2"]
    text = is_one_sentence(command("launch", "job.py:f", *said))
    assert "--workers-per-host" in text
    assert flag in text


def test_hosts_of_other_tools():
    """The same for hosts."""
    assert "--hostnames" in is_one_sentence(command("launch", "job.py:f", "--hosts", "a"))


@pytest.mark.parametrize("name", ["num_workers", "nproc_per_node", "nprocs", "num_processes"])
def test_options_of_other_tools_hint_at_ours(name):
    """In Python."""
    with pytest.raises(phalanx.ConfigError, match="Use workers_per_host"):
        phalanx.launch(int, **{name: 2})
    with pytest.raises(TypeError, match="Use workers_per_host"):
        phalanx.Launcher(**{name: 2})
    with pytest.raises(TypeError, match="Did you mean 'hostnames'"):
        phalanx.Launcher(hostname=["a"])
    assert phalanx.Launcher(["a"], 2).workers_per_host == 2


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("copy_env_vars", "env_vars"),
        ("worker_timeout", "process_group_timeout"),
        ("agent_timeout", "host_timeout"),
    ],
)
def test_fields_of_torchrunx_hint_at_ours(theirs, ours):
    """Those that have another name."""
    with pytest.raises(TypeError, match=f"Use {ours}"):
        phalanx.Launcher(**{theirs: 1})


@pytest.mark.parametrize(
    ("verb", "ours"),
    [
        *[("ps", "list"), ("jobs", "list"), ("queue", "list"), ("top", "list"), ("ls", "list")],
        *[("kill", "cancel"), ("stop", "cancel"), ("submit", "run"), ("logs", "log")],
    ],
)
def test_verbs_of_other_tools_hint_at_ours(verb, ours):
    """As typed by habit."""
    assert f"Did you mean {ours!r}?" in is_one_sentence(command(verb))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing command, as in: phalanx hosts check gpu-1 gpu-2."),
        (["chek", "a"], "unknown command 'chek'. Did you mean: phalanx hosts check a?"),
        (["a", "b"], "unknown command 'a'. Did you mean: phalanx hosts check a b?"),
    ],
)
def test_hosts_without_its_verb(words, said):
    """The command that was meant, ready to be typed."""
    assert said in is_one_sentence(command("hosts", *words))


@pytest.mark.parametrize(
    "arguments",
    [
        ["launch", "job.py:f", "--workers-per-host", "99999999"],
        ["launch", "job.py:f", "--name", "n" * 5000],
        ["torchrun", "--nproc-per-node", "99999999", "job.py"],
        ["run", "--dryrun", "utils.echo", "--num_replicas", "99999999"],
        ["n" * 5000],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_nonsense_is_refused_at_once(arguments):
    """Before anything is made so many times, or so long."""
    is_one_sentence(command(*arguments))


@pytest.mark.parametrize("kind", ["directory", "pipe", "binary", "unreadable", "socket"])
@pytest.mark.parametrize("where", ["project", "home", "named"])
def test_a_configuration_that_is_none(tmp_path, kind, where):
    """It is neither waited for nor passed over."""
    home = tmp_path / "home"
    home.mkdir()
    place = {"project": tmp_path, "home": home, "named": home}[where]
    path = place / ("named.toml" if where == "named" else ".phalanxconfig")
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(bytes(range(256)))
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:
        path.symlink_to("/proc/self/mem")  # root reads everything else
    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")} | (
        {"PHALANXCONFIG": str(path)} if where == "named" else {}
    )
    text = is_one_sentence(command("run", "--dryrun", "utils.echo", **environ))
    assert path.name in text
    done = command("list", **environ)
    assert done.returncode == 0
    assert path.name in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_for_a_functions_arguments_leaves_no_app(own_state):
    """Nor do arguments that it does not take: nothing has run."""
    before = set(own_state.glob("*"))
    done = command("launch", "job.py:f", "--", "--help")
    assert done.returncode == 0
    assert "--number" in done.stdout
    assert not Path("logs").exists()
    done = command("launch", "job.py:f", "--", "--nonsense", "1")
    assert done.returncode == 2
    assert set(own_state.glob("*")) == before
    assert not list(Path("logs").glob("*"))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import sys\nsys.exit()", 2),
        ("import sys\n\nsys.exit(3)", 3),
        ("quit('bye')", 1),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])", 2),
    ],
)
def test_a_file_that_exits_when_it_is_loaded(tmp_path, own_state, code, line):
    """File, line and code are said; it is no success."""
    (tmp_path / "leaves.py").write_text(f"{code}\ndef f(): pass\n")
    before = set(own_state.glob("*"))
    done = command("launch", "leaves.py:f")
    assert done.returncode == 2
    assert f"leaves.py, line {line}, calls sys.exit(" in done.stderr
    assert '__name__ == "__main__"' in done.stderr
    assert "Traceback" not in done.stderr
    assert set(own_state.glob("*")) == before


def test_components_and_modules_that_exit_are_reported_too(tmp_path):
    """Wherever a file of the user's is loaded."""
    (tmp_path / "leaves.py").write_text("import os, sys\nif 'RANK' in os.environ: sys.exit(0)\n")
    (tmp_path / "comp.py").write_text("import sys\nsys.exit(0)\ndef f(): pass\n")
    done = command("run", "--dryrun", "./comp.py:f")
    assert done.returncode != 0
    assert "comp.py, line 2, calls sys.exit(0)" in done.stderr
    (tmp_path / "job2.py").write_text("import leaves\ndef f(): return 1\n")
    done = command("launch", "job2.py:f", "--workers-per-host", "1")
    assert done.returncode == 1, done
    assert "leaves.py, line 2, calls sys.exit(0)" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["dist.ddp", "--script", "jib.py"],
        ["dist.ddp", "-j", "2x1", "jib.py", "--lr", "1"],
        ["dist.spmd", "--script", "jib.py", "-h", "aws_t3.medium"],
        ["utils.python", "--script", "jib.py"],
        ["utils.python", "jib.py", "--lr", "1"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("how", [[], ["-s", "ssh", "-cfg", "hosts=nowhere"]])
def test_a_script_that_is_not_there_is_refused_before_it_is_submitted(own_state, words, how):
    """Whoever would run it."""
    before = set(own_state.glob("*"))
    text = is_one_sentence(command("run", *how, *words))
    assert "no such file: jib.py. Did you mean job.py?" in text
    assert set(own_state.glob("*")) == before


def test_a_directory_is_a_script_if_python_can_run_it(tmp_path):
    """With a `__main__.py` in it, as for Python itself."""
    (tmp_path / "package").mkdir()
    for component in ("dist.ddp", "utils.python"):
        text = is_one_sentence(command("run", component, "--script", "package"))
        assert "package is a directory without a __main__.py" in text
    (tmp_path / "package" / "__main__.py").write_text("print('ran')")
    done = command("run", "--wait", "--log", "utils.python", "--script", "package")
    assert done.returncode == 0
    assert "ran" in done.stderr


def test_scripts_that_are_elsewhere_are_left_to_whoever_has_them(tmp_path):
    """On a host by its full path; in another workspace; modules and code are no files."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text("")
    for words, code in (
        (["-s", "ssh", "-cfg", "hosts=nowhere", "utils.python", "/opt/app/train.py"], 1),
        (["--workspace", "other", "utils.python", "train.py"], 0),
        (["utils.python", "-m", "package.train"], 1),
        (["utils.python", "-c", "print(1)"], 0),
        (["--dryrun", "dist.ddp", "--script", "nowhere.py"], 0),  # a request is no run
    ):
        done = command("run", "--wait", *words)
        assert done.returncode == code, (words, done)
        assert "no such file:" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers-per-host", "four"], "--workers-per-host four: must be a whole number, "),
        (["--workers-per-host=four"], "--workers-per-host four: must be a whole number, "),
        (["--max-restarts", "1.5"], "--max-restarts 1.5: must be a whole number."),
        (["--start-timeout", "soon"], "--start-timeout soon: must be a number of seconds"),
        (["--start-timeout"], "--start-timeout needs a number of seconds."),
        (["--restart", "never"], "--restart never: must be all or host."),
        (
            ["--workers-per-hsot", "4"],
            "unknown option --workers-per-hsot. Did you mean --workers-per-h",
        ),
        (["everything"], "unexpected argument 'everything'."),
        (["--", "--number", "four"], "--number four: must be a whole number."),
        (["--", "--numbr", "4"], "unknown option --numbr. Did you mean --number?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_value_of_the_wrong_type_is_one_sentence(words, said):
    """As every other mistake; no box."""
    text = is_one_sentence(command("launch", "job.py:f", *words))
    assert text.startswith("phalanx launch: ")
    assert said in text
    assert "╭" not in text


def test_an_argument_that_the_function_must_have(tmp_path):
    """Its name, and where all of them are listed."""
    (tmp_path / "needs.py").write_text("def f(lr: float, path: str): pass\n")
    text = is_one_sentence(command("launch", "needs.py:f"))
    assert "missing required --lr, --path." in text
    assert "phalanx launch needs.py:f -- --help" in text


def test_the_list_counts_replicas_as_replicas(tmp_path, monkeypatch):
    """How many workers each of them starts is its own affair."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = command("run", "--wait", "utils.echo", "--msg", "hi", "--num_replicas", "2")
    assert done.returncode == 0
    heads, row = command("list").stdout.splitlines()
    assert row[heads.index("SIZE") : heads.index("HOSTS")].strip() == "2 replicas"


def test_a_launch_that_is_terminated_says_so(tmp_path):
    """What a scheduler or a timeout sends; and that nothing is left."""
    code = "import time\nfrom pathlib import Path\n"
    code += "def f():\n    Path('began').touch()\n    time.sleep(600)\n"
    (tmp_path / "long.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "launch", "long.py:f", "--workers-per-host", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "began").exists)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    last = said.splitlines()[-1]
    assert last == "phalanx launch: terminated by SIGTERM; nothing is left running"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("log --folow", "unknown option --folow. Did you mean --follow?"),
        ("list --runing x", "unknown option --runing. Did you mean --running?"),
        ("clean --older 2d", "unknown option --older. Did you mean --older-than?"),
        ("clean --older-than 7", "--older-than: '7' has no unit: write 7d, 7h, 7m or 7s"),
        ("log --since 12", "--since: '12' has no unit: write 12d, 12h, 12m or 12s"),
        ("config --dry_run", "unknown option --dry_run. See: phalanx config --help"),
        ("status a b", "unexpected argument 'b'. See: phalanx status --help"),
        ("builtins nosuch", "no component is named like 'nosuch'"),
        ("run dist.ddp --nproc_per_node 2 --script x", "Use -j REPLICASxWORKERS, such as -j 2x4"),
        ("run dist.spmd --nnodes=2 x", "Use -j REPLICASxWORKERS"),
        ("run dist.ddp --rdzv-id=2 x", "Leave it out"),
        ("run -j 2x1 dist.ddp x", "unknown option -j. If it is the component's, put it after dist"),
        ("run --script x dist.ddp", "--script. It is an option of dist.ddp: put it after"),
        ("run --image x utils.echo", "--image. It is an option of utils.echo: put it after"),
        ("run train.py", "phalanx run dist.ddp -j 1x4 --script train.py"),
        ("torchrun --use_env x.py", "unknown flag --use_env. Leave it out: it is a flag of torch."),
        ("torchrun --hostnames a b x.py", "phalanx launch --hostnames, or phalanx run -s ssh"),
        ("torchrun --quax x.py", "unknown flag --quax. See: phalanx torchrun --help."),
    ],
)
def test_habits_of_other_tools_and_slips_of_the_pen(words, said, capsys):
    """What was meant is said, or where to look; never the nearest of anything."""
    try:
        code = main(words.split())
    except SystemExit as stop:
        code = stop.code
    assert code in (1, 2)
    assert said in capsys.readouterr().err


def test_components_are_listed_by_a_part_of_their_names(capsys):
    """As one looks for them."""
    assert main(["builtins", "dist"]) == 0
    assert capsys.readouterr().out.split("\n", 1)[1] == " 1. dist.ddp\n 2. dist.spmd\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("kind", ["file", "link", "pipe", "directory", "writable"])
@pytest.mark.parametrize("above", [False, True])
def test_a_configuration_that_others_can_write_does_not_count(tmp_path, monkeypatch, kind, above):
    """It would name programs to run, for everybody who works below /tmp; and nobody is held up."""
    home, below = tmp_path / "home", tmp_path / "below"
    home.mkdir()
    below.mkdir()
    monkeypatch.chdir(below)
    path = (tmp_path if above else below) / ".phalanxconfig"
    text = '[command.run]\nscheduler = "nowhere"\n'
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        (home / "other").write_text(text)
        path.symlink_to(home / "other")
    else:
        path.write_text(text)
    if kind == "writable":
        path.chmod(0o666)
    else:
        os.chown(path, 65534, -1, follow_symlinks=False)
    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    done = command("run", "--dryrun", "utils.echo", **environ)
    assert done.returncode == 0, done.stderr
    who = "every user can write to it" if kind == "writable" else "it belongs to nobody"
    told = f"phalanx: ignoring {path}: {who}. To use it: PHALANXCONFIG={path}\n"
    assert done.stderr == told
    if kind in ("file", "link", "writable"):
        environ["PHALANXCONFIG"] = str(path)
        named = command("run", "--dryrun", "utils.echo", **environ)
        assert "nowhere" in named.stderr

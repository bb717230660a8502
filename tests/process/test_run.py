"""`phalanx run` and its neighbours on this machine, from outside: BEHAVIOURS F, line by line."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from phalanx._registry import recorded_app
from phalanx.runner import get_runner
from phalanx.schedulers import Stream
from phalanx._schedulers.replicas.request import AppRequest, ReplicaRequest, RoleRequest
from phalanx._schedulers.supervised.replicas import LocalReplicas
from phalanx._system.processes import descendants, has_died
from tests.conftest import is_alive, wait_until
from tests.process.commands import check_snapshot, phalanx, without_ids


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    """Apps of this test alone; those that it leaves running end with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield tmp_path / "state" / "phalanx" / "apps"
    with get_runner() as runner:
        for app in runner.list():
            runner.cancel(app.app_handle)


def run(*args, **kwargs):
    return phalanx("run", *args, **kwargs)


def status(app="", **kwargs):
    """As JSON."""
    done = phalanx("status", "--json", *([app] if app else []), **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["status"]


def submit(*args):
    """The handle of an app that is submitted and not waited for."""
    done = run(*args)
    assert done.returncode == 0, done.stderr
    (handle,) = done.stdout.split()
    return handle


# ── components ────────────────────────────────────────────────────────────────


def test_builtins_are_counted_and_listed():
    """As many as it says."""
    out = phalanx("builtins").stdout
    check_snapshot("builtins", out)
    first, *rest = out.splitlines()
    assert first == f"Found {len(rest)} builtin components:"
    described = json.loads(phalanx("builtins", "--json").stdout)
    assert [c["name"] for c in described["components"]] == [r.split()[1] for r in rest]


def test_the_source_of_one_is_printed():
    """To begin one's own from."""
    assert "def echo(" in phalanx("builtins", "--print", "utils.echo").stdout
    assert "def echo(" in phalanx("builtins", "--print", "echo").stdout
    done = phalanx("builtins", "--print", "nothing")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["utils.ecko"], 1, "unknown component 'utils.ecko'. Did you mean 'utils.echo'?"),
        (["ecko"], 1, "Did you mean 'utils.echo'?"),
        (["nonsense"], 1, "unknown component 'nonsense'. List components with: phalanx builtins"),
        (["./nothing.py:fn"], 1, "no such file: ./nothing.py."),
        (["./comp.py:trainr"], 1, "./comp.py has no function 'trainr'. Did you mean 'trainer'?"),
        (["./compp.py:trainer"], 1, "no such file: ./compp.py. Did you mean comp.py?"),
        (["comp:trainer"], 1, "no such file: comp. Did you mean comp.py?"),
        (["jobs.deep:trainer"], 1, "no such file: jobs.deep. Did you mean jobs/deep.py?"),
        (["./comp.py:untyped"], 1, "./comp.py:untyped is not a component: its parameter 'x' has"),
        (
            ["-s", "local_cdw", "utils.echo"],
            1,
            "unknown scheduler 'local_cdw'. Did you mean 'local_cwd'",
        ),
        (["-cfg", "log_dri=x", "utils.echo"], 2, "no option 'log_dri'. Did you mean 'log_dir'?"),
        (["-cfg", "prepend_cwd=maybe", "utils.echo"], 2, "'maybe' is not yes or no"),
        (["-cfg", "rubbish", "utils.echo"], 2, "'rubbish' is not KEY=VALUE"),
        (
            ["-cfg", "hosts=a-1", "b-1"],
            1,
            "If it belongs to -cfg, leave out the space: hosts=a-1,b-1",
        ),
        (["-cfg", "hosts=a", "ecko"], 1, "Did you mean 'utils.echo'?"),
        (["-s", "ssh", "utils.echo"], 2, "ssh: missing required option 'hosts'"),
        (
            ["-s", "kubernetes", "--dryrun", "utils.echo"],
            2,
            "For a dry run without a cluster: -cfg namespace=NAME,server_version=1.29",
        ),
        (["utils.echo", "--num_replicas", "two"], 2, "--num_replicas: 'two' is not a whole number"),
        (["utils.echo", "--msg", "a", "--msg=b"], 2, "utils.echo: --msg is given twice"),
        (["utils.echo", "--mesg", "a"], 2, "no option '--mesg'. Did you mean --msg?"),
        (["utils.echo", "--msg"], 2, "--msg needs a value: str"),
        (["dist.ddp", "-h"], 2, "-h needs a value: str. For help: phalanx run dist.ddp --help"),
        (["./comp.py:greet"], 1, "not AppDef. To call a function: phalanx launch ./comp.py:greet"),
        (
            ["utils.echo", "hi"],
            2,
            "takes only options: unexpected argument 'hi'. Did you mean --msg hi?",
        ),
        (["utils.copy"], 2, "utils.copy: missing required --src, --dst."),
        (["dist.ddp", "-j", "x", "a.py"], 2, "-j 4, -j 1x4"),
        (["dist.ddp", "-j", "2x", "a.py"], 2, "-j 4, -j 1x4"),
        (["dist.ddp", "-j", "1:2", "a.py"], 2, "-j 4, -j 1x4"),
        (["dist.ddp", "--debug", "maybe", "a.py"], 2, "--debug: 'maybe' is not yes or no"),
        (["dist.ddp", "--debug", "2", "a.py"], 2, "'2' is not yes or no, true or false"),
        (["utils.sh", "--h", "gpu.smal", "true"], 2, "'gpu.smal'. Did you mean 'gpu.small'?"),
        (["./comp.py:picky", "--x", "7"], 2, "7 is too many"),
        (
            ["utils.echo", "-s", "local_cwd"],
            2,
            "'-s'. It is an option of run: put it before the component",
        ),
        (
            ["utils.echo", "--scheduler=local_cwd"],
            2,
            "'--scheduler'. It is an option of run: put it before the component",
        ),
        (["-s", "a", "-s", "b", "utils.echo"], 2, "-s is given twice"),
        ([], 2, "missing component"),
        (["--workspace", "nowhere", "utils.echo"], 2, "workspace "),
        (["--nonsense", "1", "utils.echo"], 2, "local_cwd has no option 'nonsense'"),
    ],
)
def test_a_mistake_is_one_clear_sentence(words, code, said, tmp_path):
    """With its exit code, the nearest name, and no traceback; nothing was submitted."""
    (tmp_path / "comp.py").write_text(COMPONENTS)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "deep.py").write_text(COMPONENTS)
    done = run(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not recorded_app.apps()


COMPONENTS = '''
from typing import Optional

import phalanx.specs as specs


def trainer(name: str = "nobody", workers: Optional[int] = None, lr: float | None = None,
            verbose: bool = False, tags: list[str] = [], sizes: dict[str, int] = {},
            wait: str = "no", dryrun: bool = False) -> specs.AppDef:
    """Train something.

    A second paragraph.

    Args:
        name: whose it is
        workers: how many,
            on two lines
    """
    print("components may print")
    shown = repr([name, workers, lr, verbose, tags, sizes, wait, dryrun])
    role = specs.Role("trainer", entrypoint="echo", args=[shown.replace("$", "$$")])
    return specs.AppDef("trainer", [role])


def picky(x: int) -> specs.AppDef:
    raise ValueError(f"{x} is too many")


def untyped(x) -> specs.AppDef: ...


def greet() -> str: ...


def rest(*args: str, a: int = 0) -> specs.AppDef:
    role = specs.Role("rest", entrypoint="echo", args=[repr((a, args))])
    return specs.AppDef("rest", [role])
'''


def built(tmp_path, *words):
    """What a component of the file above printed when it was run with these words."""
    (tmp_path / "comp.py").write_text(COMPONENTS)
    done = run("--wait", "--log", *words)
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if "/0 " in text]
    return line.partition(" ")[2]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["nobody", None, None, False, [], {}, "no", False]),
        (["--workers", "3", "--lr", "1e-3"], ["nobody", 3, 0.001, False, [], {}, "no", False]),
        (["--verbose", "YES"], ["nobody", None, None, True, [], {}, "no", False]),
        (["--verbose=false", "--name", "a=b"], ["a=b", None, None, False, [], {}, "no", False]),
        (["--tags", 'a,"b,c"'], ["nobody", None, None, False, ["a", "b,c"], {}, "no", False]),
        (["--sizes", "a=1,b=2"], ["nobody", None, None, False, [], {"a": 1, "b": 2}, "no", False]),
        (["--wait", "x", "--dryrun", "yes"], ["nobody", None, None, False, [], {}, "x", True]),
        (["--", "--name", "test app"], ["test app", None, None, False, [], {}, "no", False]),
    ],
)
def test_arguments_arrive_with_their_types(words, shown, tmp_path):
    """Options of the component that are named like run's own among them."""
    assert built(tmp_path, "./comp.py:trainer", *words) == repr(shown)


def test_a_file_may_be_named_absolutely_and_from_below(tmp_path):
    """Wherever one is."""
    assert built(tmp_path, f"{tmp_path}/comp.py:rest") == "(0, ())"
    (tmp_path / "below").mkdir()
    done = run("--dryrun", "../comp.py:rest", cwd=tmp_path / "below")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--", "--flag", "--help"], (0, ("--flag", "--help"))),
        (["x", "--a", "1"], (0, ("x", "--a", "1"))),
        (["--a", "1", "--", "--a", "2"], (1, ("--a", "2"))),
        (["--a", "1", "x", "--", "y"], (1, ("x", "--", "y"))),
        (["--", "--", "y"], (0, ("--", "y"))),
        (["--a=-1"], (-1, ())),
    ],
)
def test_what_is_behind_the_dashes_is_the_programs(words, shown, tmp_path):
    """Help among it."""
    assert built(tmp_path, "./comp.py:rest", *words) == repr(shown)


def test_help_of_a_component(tmp_path):
    """Docstring, types, defaults."""
    (tmp_path / "comp.py").write_text(COMPONENTS)
    done = run("./comp.py:trainer", "--help")
    assert done.returncode == 0
    check_snapshot("help-of-a-component", done.stdout)
    check_snapshot("help-of-ddp", run("-s", "local_cwd", "dist.ddp", "--help").stdout)


@pytest.mark.parametrize(
    "verb",
    "run builtins runopts list status describe log stacks chaos cancel delete clean config configure completion"
    "".split(),
)
def test_help_of_each_command(verb):
    """As it was."""
    done = phalanx(verb, "--help", env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0
    check_snapshot(f"help-of-{verb}", done.stdout)


def test_help_of_all():
    """Every command is there."""
    check_snapshot("help", phalanx("--help").stdout)


def test_a_component_may_raise_what_it_likes(tmp_path):
    """What is not a refusal is shown as it is."""
    (tmp_path / "bad.py").write_text(
        "import phalanx.specs as specs\n"
        "def bad() -> specs.AppDef:\n    return {}['missing']\n"
        "def none() -> specs.AppDef:\n    return None\n"
    )
    done = run("./bad.py:bad")
    assert done.returncode == 1
    assert "KeyError: 'missing'" in done.stderr
    done = run("./bad.py:none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "./bad.py:none must return an AppDef, not None" in done.stderr


# ── dry runs ──────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_the_app_and_the_exact_request_and_does_nothing(tmp_path):
    """The seed's own example."""
    before = sorted(tmp_path.rglob("*"))
    done = run("--dryrun", "-s", "local_cwd", "utils.python", "hello.py", "aptg")
    assert done.returncode == 0, done.stderr
    app, request = done.stdout.split("=== SCHEDULER REQUEST ===")
    assert app.startswith("=== APPLICATION ===")
    app = json.loads(app.partition("\n")[2])
    (role,) = app["roles"]
    assert (role["entrypoint"], role["args"]) == ("python", ["hello.py", "aptg"])
    (replica,) = json.loads(request)["roles"][0]["replicas"]
    assert replica["argv"][1:] == ["hello.py", "aptg"]
    assert sorted(tmp_path.rglob("*")) == before


# ── running ───────────────────────────────────────────────────────────────────


def test_run_prints_the_handle_alone():
    """On stdout; from it everything else is found."""
    handle = submit("utils.echo", "--msg", "hi")
    assert handle.startswith("local_cwd://phalanx/echo-")
    wait_until(lambda: status(handle)["state"] == "SUCCEEDED")
    assert phalanx("log", handle).stdout == "echo/0 hi\n"


def test_a_script_as_first_argument(tmp_path):
    """With what comes behind it."""
    (tmp_path / "hello.py").write_text("import sys; print('hello', sys.argv[1:])\n")
    done = run("--wait", "--log", "utils.python", "hello.py", "aptg", "--flag")
    assert done.returncode == 0
    assert "python/0 hello ['aptg', '--flag']" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["utils.python", "-c", "raise LookupError('told you')"], 1, "LookupError: told you"),
        (["utils.sh", "exit 7"], 7, ""),
        (["utils.sh", "echo no >&2; exit 3"], 3, "no"),
        (["utils.sh", "kill -9 $$$$"], 137, ""),
        (
            ["utils.binary", "--entrypoint", "no-such-program"],
            127,
            "cannot start 'no-such-program'",
        ),
        (["utils.binary", "--entrypoint", "python", "nowhere.py"], 2, "can't open file"),
    ],
)
def test_wait_exits_with_the_apps_own_code(words, code, error):
    """And status says why."""
    done = run("--wait", *words)
    assert done.returncode == code, done.stderr
    assert "FAILED" in done.stderr
    found = status()
    (replica,) = found["roles"][0]["replicas"]
    assert found["exit_code"] == code
    assert replica["state"] == "FAILED"
    assert error in replica["error"]
    assert (replica["exit_code"] == code) != (replica["signal"] == "SIGKILL")
    shown = phalanx("status").stdout
    assert error in shown


def test_a_failed_replica_ends_the_app_at_once(tmp_path):
    """The others are stopped, and shown as that."""
    code = "import os, time; os.environ['PHALANX_REPLICA_ID'] == '1' and 1 / 0; time.sleep(300)"
    done = run("--wait", "utils.python", "--num_replicas", "3", "-c", code)
    assert done.returncode == 1
    replicas = status()["roles"][0]["replicas"]
    assert [r["state"] for r in replicas] == ["CANCELLED", "FAILED", "CANCELLED"]
    assert replicas[1]["error"] == "ZeroDivisionError: division by zero"
    assert "python/1 exited with code 1: ZeroDivisionError" in done.stderr


def test_an_error_file_in_torchs_format_is_read(tmp_path):
    """As torchrun's `@record` writes it."""
    code = (
        "import json, os, sys; json.dump({'message': {'message': 'ValueError: deep inside'}}, "
        "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); sys.exit(1)"
    )
    assert run("--wait", "utils.python", "-c", code).returncode == 1
    assert status()["roles"][0]["replicas"][0]["error"] == "ValueError: deep inside"


def test_macros_in_arguments_environment_and_metadata(tmp_path):
    """Nested; `$$` gives `$`, unknown names stay."""
    (tmp_path / "comp.py").write_text(
        textwrap.dedent("""
        from phalanx.specs import AppDef, Role, macros

        def app() -> AppDef:
            env = {"ROOT": macros.img_root, "JOB": f"job {macros.app_id}/{macros.replica_id}"}
            line = 'echo "$$ROOT|$$JOB|${unknown}|$${%s}"' % macros.rank0_env
            meta = {"deep": [{"id": macros.app_id}]}
            role = Role("r", entrypoint="sh", args=["-c", line], env=env, metadata=meta)
            return AppDef("app", [role])
        """)
    )
    handle = submit("./comp.py:app")
    app_id = handle.rpartition("/")[2]
    done = phalanx("log", "-f", handle)
    assert done.stdout == f"r/0 {tmp_path}|job {app_id}/0||localhost\n"


def test_the_replicas_environment(tmp_path):
    """The command's own, and who they are."""
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    handle = submit("--parent_run_id", "p-1", "utils.python", "-c", code)
    done = phalanx("log", "-f", handle)
    environ = json.loads(done.stdout.partition(" ")[2])
    assert environ["PHALANX_JOB_ID"] == handle
    assert environ["PHALANX_PARENT_RUN_ID"] == "p-1"
    assert environ["PHALANX_REPLICA_ID"] == "0"
    assert environ["PHALANX_RANK0_HOST"] == "localhost"
    assert environ["PHALANX_TESTS"] == os.environ["PHALANX_TESTS"]
    assert environ["PATH"].split(":")[-1] == str(tmp_path)


def test_programs_of_the_current_directory(tmp_path):
    """Are found last, or first."""
    for name in ("mine", "ls"):
        (tmp_path / name).write_text("#!/bin/sh\necho own\n")
        (tmp_path / name).chmod(0o755)
    for options, program, own in (
        ([], "mine", True),
        ([], "ls", False),
        (["-cfg", "prepend_cwd=yes"], "ls", True),
        (["--prepend_cwd", "yes"], "ls", True),
    ):
        handle = submit(*options, "utils.binary", "--entrypoint", program)
        assert (phalanx("log", "-f", handle).stdout == "binary/0 own\n") == own


def test_a_log_dir_of_ones_own(tmp_path):
    """The streams are files in it."""
    handle = submit("-cfg", "log_dir=out", "utils.sh", "echo a; echo b >&2")
    phalanx("log", "-f", handle)
    place = tmp_path / "out" / "phalanx" / handle.rpartition("/")[2] / "sh" / "0"
    assert (place / "stdout.log").read_text() == "a\n"
    assert (place / "stderr.log").read_text() == "b\n"
    assert phalanx("delete", handle).returncode == 0
    assert not (place / "stdout.log").exists()


def test_a_workspace_is_the_directory_it_runs_in(tmp_path):
    """Another than the current one."""
    (tmp_path / "there").mkdir()
    handle = submit("--workspace", "there", "utils.sh", "pwd")
    assert phalanx("log", "-f", handle).stdout == f"sh/0 {tmp_path}/there\n"


def test_retries_are_counted(tmp_path):
    """And the last failure is the app's."""
    script = "echo try; test -e done && exit 0; touch done; exit 5"
    handle = submit("utils.sh", "--max_retries", "1", script)
    assert phalanx("log", "-f", handle).stdout == "sh/0 try\nsh/0 try\n"
    assert (status(handle)["state"], status(handle)["num_restarts"]) == ("SUCCEEDED", 1)


def test_everything_from_stdin():
    """As JSON."""
    given = {"component_name": "utils.echo", "component_args": {"msg": "hi"}, "wait": True}
    done = run("--stdin", input=json.dumps(given))
    assert done.returncode == 0, done.stderr
    assert phalanx("log").stdout == "echo/0 hi\n"
    given = {"component_name": "utils.sh", "component_args": ["exit 4"], "wait": True}
    given |= {"scheduler": "local_cwd", "scheduler_args": {"stop_grace": 1}}
    assert run("--stdin", input=json.dumps(given)).returncode == 4
    for text, said in (
        ("{", "invalid JSON"),
        ("[]", "component_name"),
        ('{"component_name": 1}', ""),
    ):
        done = run("--stdin", input=text)
        assert done.returncode == 2
        assert said in done.stderr


def test_ddp_forms_a_group_here(tmp_path):
    """Two workers under one agent; two agents that meet."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.barrier()
        dist.destroy_process_group()
        print("sum", total.item(), sys.argv[1:])
        """)
    )
    for words in (["-j", "1x2", "--script", "train.py", "--", "--lr", "1 2"],):
        done = run("--log", "dist.ddp", *words, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("sum 2.0 ['--lr', '1 2']") == 2
    done = run("--log", "dist.ddp", "-j", "2x1", "--rdzv_port", "29677", "train.py", timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sum 2.0 []") == 2


# ── from another terminal ─────────────────────────────────────────────────────


def test_log_by_role_replica_regex_stream_and_time(tmp_path):
    """Without follow it returns at once, though the app goes on."""
    script = "echo out ${replica_id}; echo err ${replica_id} >&2; sleep 300"
    handle = submit("utils.sh", "--num_replicas", "3", script)
    app = handle.rpartition("/")[2]
    wait_until(lambda: len(phalanx("log", handle).stdout.splitlines()) == 6)
    log = lambda *args: sorted(phalanx("log", *args).stdout.splitlines())
    assert log(f"{app}/sh/1") == ["sh/1 err 1", "sh/1 out 1"]
    assert log(f"{handle}/sh/0,2", "--streams", "stdout") == ["sh/0 out 0", "sh/2 out 2"]
    assert log(app, "--streams", "stderr", "--regex", "[12]$") == ["sh/1 err 1", "sh/2 err 2"]
    assert log(app, "--since", "1h", "--until", "30m") == []
    assert len(log(app, "--since", "1h")) == 6
    assert len(log(f"{app}/sh", "-n", "2")) == 6  # two of each replica
    line = json.loads(phalanx("log", f"{app}/sh/0", "--streams", "stdout", "--json").stdout)
    assert (line["role"], line["replica"], line["text"]) == ("sh", 0, "out 0")
    for place, said in ((f"{app}/no", "no role 'no'"), (f"{app}/sh/7", "replicas 0 to 2, not 7")):
        done = phalanx("log", place)
        assert (done.returncode, said in done.stderr) == (1, True)
    assert phalanx("log", f"{app}/sh/x").returncode == 1
    assert status(app)["state"] == "RUNNING"


def test_two_roles_are_told_apart(tmp_path):
    """In status and log."""
    (tmp_path / "comp.py").write_text(
        textwrap.dedent("""
        from phalanx.specs import AppDef, Role

        def app() -> AppDef:
            roles = [Role(n, entrypoint="echo", args=[n], num_replicas=2) for n in ("a", "b")]
            return AppDef("two", roles)
        """)
    )
    assert run("--wait", "./comp.py:app").returncode == 0
    assert sorted(phalanx("log").stdout.splitlines()) == ["a/0 a", "a/1 a", "b/0 b", "b/1 b"]
    assert [r["role"] for r in status()["roles"]] == ["a", "b"]


def test_list_describe_and_delete():
    """Each with JSON."""
    handle = submit("utils.echo", "--msg", "hi")
    app = handle.rpartition("/")[2]
    phalanx("log", "-f", handle)
    (row,) = json.loads(phalanx("list", "--json").stdout)
    assert (row["handle"], row["status"]["state"]) == (handle, "SUCCEEDED")
    assert app in phalanx("list").stdout
    (row,) = json.loads(phalanx("list", "-s", "local_cwd", "--json").stdout)
    assert row.pop("seconds") >= 0
    assert row == {"handle": handle, "name": "echo", "state": "SUCCEEDED"}
    described = json.loads(phalanx("describe", app).stdout)
    assert described["roles"][0]["args"] == ["hi"]
    assert json.loads(phalanx("delete", app, "--json").stdout) == [handle]
    assert json.loads(phalanx("list", "--json").stdout) == []
    for verb in ("status", "describe", "log", "delete", "cancel"):
        done = phalanx(verb, handle)
        assert (done.returncode, done.stdout) == (1, ""), verb
        assert "no such app" in done.stderr


def test_cancelling_what_ignores_sigterm():
    """It is killed after the grace, with everything below it; twice does no harm."""
    script = "trap '' TERM; setsid sleep 301 & echo up $$$$ $$!; while :; do sleep 1; done"
    handle = submit("-cfg", "stop_grace=0.5", "utils.sh", script)
    line = wait_until(lambda: phalanx("log", handle).stdout)
    pids = [int(word) for word in line.split()[2:]]
    done = phalanx("cancel", handle)
    assert (done.returncode, done.stdout) == (0, f"{handle.rpartition('/')[2]}: CANCELLED\n")
    wait_until(lambda: not any(map(is_alive, pids)))
    done = phalanx("cancel", handle)
    assert (done.returncode, "has already ended: CANCELLED" in done.stdout) == (0, True)
    done = phalanx("cancel", "nothing-at-all")
    assert done.returncode == 1
    assert "no such app: 'nothing-at-all'" in done.stderr


def test_several_apps_are_cancelled_at_once():
    """Each is answered for, also where one is none; without names, none is chosen."""
    handles = [submit("utils.sh", "echo up; sleep 300") for _ in range(2)]
    for handle in handles:
        wait_until(lambda handle=handle: phalanx("log", handle).stdout)
    names = [handle.rpartition("/")[2] for handle in handles]
    done = phalanx("cancel")
    assert done.returncode == 1
    assert "several apps are running; name those to cancel: " in done.stderr
    done = phalanx("cancel", handles[0], "nothing-at-all", handles[1])
    assert done.stdout == "".join(f"{name}: CANCELLED\n" for name in names)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no such app: 'nothing-at-all'" in done.stderr


def test_the_command_is_killed_and_the_app_goes_on(tmp_path):
    """Running, and findable."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "--log", "utils.sh", "echo up; sleep 300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    handle = process.stdout.readline().strip()
    wait_until(lambda: phalanx("log", handle).stdout)
    process.kill()
    process.wait()
    process.stdout.close()
    assert status(handle)["state"] == "RUNNING"
    assert phalanx("cancel", handle).returncode == 0


def test_ctrl_c_while_waiting_leaves_the_app_running():
    """And says how to end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "--wait", "utils.sh", "sleep 300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    handle = process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"phalanx cancel {handle}" in err
    assert "Traceback" not in err
    wait_until(lambda: status(handle)["state"] == "RUNNING")


@pytest.mark.parametrize("whom", ["keeper", "supervisor"])
def test_a_killed_supervisor_leaves_nothing_running(whom):
    """The app is FAILED, and says why."""
    handle = submit("utils.sh", "setsid sleep 302 & echo up $$$$ $$!; sleep 300")
    line = wait_until(lambda: phalanx("log", handle).stdout)
    pids = [int(word) for word in line.split()[2:]]
    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(keeper if whom == "keeper" else int(children[0]), signal.SIGKILL)
    wait_until(lambda: status(handle)["state"] == "FAILED")
    wait_until(lambda: not any(map(is_alive, pids)))
    assert "the last output of its replicas may be missing" in status(handle)["message"]


@pytest.mark.parametrize("whom", ["keeper", "supervisor"])
def test_a_supervisor_that_is_stopped_is_continued(whom):
    """The app ends as it would have."""
    handle = submit("utils.sh", "echo up; until test -e go; do sleep 0.05; done")
    wait_until(lambda: phalanx("log", handle).stdout)
    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(keeper if whom == "keeper" else int(children[0]), signal.SIGSTOP)
    Path("go").touch()
    wait_until(lambda: status(handle)["state"] == "SUCCEEDED")


def test_a_keeper_that_is_stopped_hears_of_a_killed_supervisor():
    """Whoever looks continues it: its app would be running for ever."""
    handle = submit("utils.sh", "echo up; sleep 600")
    wait_until(lambda: phalanx("log", handle).stdout)
    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(keeper, signal.SIGSTOP)
    os.kill(int(children[0]), signal.SIGKILL)
    wait_until(lambda: status(handle)["state"] == "FAILED")
    assert "the last output of its replicas may be missing" in status(handle)["message"]
    wait_until(lambda: not is_alive(keeper))


def test_an_app_whose_machine_was_restarted_is_failed(own_registry):
    """Its supervisor cannot be there any more."""
    handle = submit("utils.echo")
    phalanx("log", "-f", handle)
    path = own_registry / handle.rpartition("/")[2]
    facts = json.loads((path / "app.json").read_text())
    facts["owner"]["boot"] = "another"
    (path / "app.json").write_text(json.dumps(facts))
    before = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({**before, "state": "RUNNING"}))
    assert status(handle)["state"] == "FAILED"
    assert "supervisor" in status(handle)["message"]
    assert phalanx("log", handle).stdout == "echo/0 hello world\n"


def test_a_hundred_short_runs_lose_no_line():
    """Followed from the moment that they are submitted."""
    with get_runner() as runner:
        for i in range(100):
            app = {"msg": f"line {i}"}
            handle = runner.run_component("utils.echo", app)
            assert list(runner.log_lines(handle, "echo", 0, follow=True)) == [f"line {i}"]


def test_many_lines_of_many_replicas_are_all_there():
    """In order for each."""
    script = "i=0; while [ $$i -lt 2000 ]; do echo $$i; i=$$((i+1)); done"
    done = run("--log", "utils.sh", "--num_replicas", "4", script)
    assert done.returncode == 0
    for replica in range(4):
        mine = [t for t in done.stderr.splitlines() if t.startswith(f"sh/{replica} ")]
        assert mine == [f"sh/{replica} {i}" for i in range(2000)]


def test_bytes_that_are_not_text_do_no_harm():
    """Nor does a line without an end."""
    handle = submit("utils.sh", r"printf 'a\377b\r50%%\r100%%\nlast'")
    out = phalanx("log", "-f", handle).stdout
    assert out.splitlines()[-1] == "sh/0 last"


# ── configuration ─────────────────────────────────────────────────────────────


def test_options_come_from_command_line_environment_project_home_and_defaults(tmp_path):
    """In this order, and it can be seen which."""
    project, below = tmp_path / "project", tmp_path / "project" / "a" / "b"
    below.mkdir(parents=True)
    home = tmp_path / "home" / ".phalanxconfig"

    def grace(*options, **environ):
        env = {**os.environ, **environ}
        done = run(*options, "--dryrun", "utils.echo", cwd=below, env=env)
        assert done.returncode == 0, done.stderr
        shown = json.loads(phalanx("config", "local_cwd", "--json", cwd=below, env=env).stdout)
        request = json.loads(done.stdout.partition("REQUEST ===")[2])
        return request["stop_grace"], shown["scheduler.local_cwd"]["stop_grace"]["origin"]

    assert grace() == (5.0, "default")
    home.write_text("[scheduler.local_cwd]\nstop_grace = 1\n")
    assert grace() == (1.0, str(home))
    (project / ".phalanxconfig").write_text("[scheduler.local_cwd]\nstop_grace = 2.0\n")
    assert grace() == (2.0, f"{project}/.phalanxconfig")
    variable = {"PHALANX_LOCAL_CWD_STOP_GRACE": "3"}
    assert grace(**variable) == (3.0, "$PHALANX_LOCAL_CWD_STOP_GRACE")
    assert grace("-cfg", "stop_grace=4", **variable)[0] == 4.0
    other = tmp_path / "other.toml"
    other.write_text("[scheduler.local_cwd]\nstop_grace = 5\n")
    assert grace(PHALANXCONFIG=str(other)) == (5.0, str(other))


def test_components_and_commands_are_configured_too(tmp_path):
    """A default message, a default scheduler, a default flag."""
    (tmp_path / ".phalanxconfig").write_text(
        '[component."utils.echo"]\nmsg = "configured"\nnum_replicas = 2\n'
        "[command.run]\nwait = true\nlog = true\n"
        "[command.list]\nall = true\n"
    )
    done = run("utils.echo")
    assert sorted(done.stderr.splitlines()[:-1]) == ["echo/0 configured", "echo/1 configured"]
    done = run("utils.echo", "--msg", "given")
    assert sorted(done.stderr.splitlines()[:-1]) == ["echo/0 given", "echo/1 given"]
    env = {**os.environ, "PHALANX_UTILS_ECHO_MSG": "environment"}
    assert "echo/0 environment" in run("utils.echo", env=env).stderr
    done = phalanx("config")
    assert "configured" in done.stdout
    env = {**os.environ, "PHALANX_RUN_SCHEDULER": "nowhere"}
    assert "unknown scheduler 'nowhere'" in run("utils.echo", env=env).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[scheduler.local_cwd\n", "invalid TOML"),
        ("[local_cwd]\n", "choose one of [scheduler.local_cwd]"),
        ("[scheduler.local_cwd]\nlogdir = 1\n", "local_cwd has no option 'logdir'"),
        ("[scheduler.local_cwd]\nlog_dir = 1\n", "local_cwd: option 'log_dir'"),
        ("[command.run]\nwiat = true\n", "run has no option 'wiat'"),
        ('[command.run]\nwait = "maybe"\n', "'maybe' is not yes or no"),
        ("scheduler = 1\n", "write [scheduler.NAME]"),
        ('[component."utils.echo"]\nmesg = "x"\n', "utils.echo has no option 'mesg'"),
    ],
)
def test_a_configuration_that_is_wrong_is_named(text, said, tmp_path):
    """With its file, or what is wrong in it."""
    (tmp_path / ".phalanxconfig").write_text(text)
    done = run("utils.echo")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_configure_writes_a_file_to_begin_with(tmp_path):
    """Which changes nothing as it is, and is not written over."""
    done = phalanx("configure")
    path = tmp_path / ".phalanxconfig"
    assert done.stdout == f"wrote {path}\n"
    check_snapshot("configure", path.read_text())
    assert run("--wait", "utils.echo").returncode == 0
    done = phalanx("configure")
    assert done.returncode == 1
    assert "already exists" in done.stderr
    assert phalanx("configure", "--print", "-s", "ssh").stdout.count("[scheduler.") == 1
    assert phalanx("configure", "--print", "-s", "nowhere").returncode == 1


def test_runopts():
    """All, one, and one that is not there."""
    check_snapshot("runopts", phalanx("runopts").stdout)
    only = phalanx("runopts", "ssh").stdout
    assert only.startswith("ssh:\n  required:\n    hosts (list of str)")
    known = {"local_cwd", "ssh", "slurm", "local_docker", "kubernetes", "ray", "aws_batch"}
    assert set(json.loads(phalanx("runopts", "--json").stdout)) == known
    done = phalanx("runopts", "ssg")
    assert (done.returncode, "Did you mean 'ssh'?" in done.stderr) == (1, True)


# ── surroundings ──────────────────────────────────────────────────────────────


def test_a_home_that_cannot_be_written_is_a_clear_error():
    """An app that nobody could find is not started."""
    env = {**os.environ, "XDG_STATE_HOME": "/proc/nowhere"}
    done = run("utils.echo", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot record apps: " in done.stderr
    assert "Traceback" not in done.stderr


def test_from_cron_with_no_home_and_no_terminal(tmp_path):
    """Hardly any environment."""
    env = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path / "cron")}
    env["PHALANX_TESTS"] = os.environ["PHALANX_TESTS"]
    done = run("--wait", "--log", "utils.python", "-c", "print(1)", env=env)
    assert (done.returncode, done.stderr.split("\n")[0]) == (0, "python/0 1")


def test_completion():
    """Commands, components, options, schedulers, apps."""
    words = lambda *w: phalanx("completion", "--words", *w).stdout.split()
    assert "builtins" in words("bu")
    assert words("run", "utils.e") == ["utils.echo"]
    assert words("run", "-s", "local_") == ["local_cwd", "local_docker"]
    assert "--msg" in words("run", "-s", "local_cwd", "utils.echo", "--")
    assert "--dryrun" in words("run", "--d")
    assert "--json" in words("list", "--")
    handle = submit("utils.echo")
    assert words("status", "ec") == [handle.rpartition("/")[2]]
    for shell in ("bash", "zsh", "fish"):
        done = phalanx("completion", shell)
        assert "phalanx completion --words" in done.stdout


def test_completion_in_a_real_bash(tmp_path):
    """The script that is printed does it."""
    script = (
        'eval "$(phalanx completion bash)"; COMP_WORDS=(phalanx run utils.ec); COMP_CWORD=2; '
        '_phalanx; echo "${COMPREPLY[@]}"'
    )
    programs = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout == "utils.echo\n", done.stderr


def test_status_as_people_see_it():
    """A table for the replicas."""
    run("--wait", "utils.sh", "--num_replicas", "2", "exit ${replica_id}")
    out = without_ids(phalanx("status").stdout)
    lines = out.splitlines()
    assert lines[0].startswith("sh-ID: FAILED after ")
    assert lines[1] == "  handle: local_cwd://phalanx/sh-ID"
    assert [line.split()[:2] for line in lines[-3:-1]] == [
        ["sh/0", "SUCCEEDED"],
        ["sh/1", "FAILED"],
    ]


def test_waiting_does_not_keep_the_pipe_open():
    """A supervisor holds nothing of the command's."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "utils.sh", "sleep 300"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert time.monotonic() - began < 50


# ── neighbours ────────────────────────────────────────────────────────────────


def test_what_cannot_be_started_ends_what_could(tmp_path):
    """At once, with its message, whichever comes first; retries do not hide it."""
    (tmp_path / "comp.py").write_text(
        textwrap.dedent("""
        from phalanx.specs import AppDef, RetryPolicy, Role

        def app(first: bool, retries: int) -> AppDef:
            policy = RetryPolicy.REPLICA
            a = Role("a", entrypoint="nosuch", max_retries=retries, retry_policy=policy)
            b = Role("b", entrypoint="sleep", args=["600"])
            return AppDef("app", [a, b] if first else [b, a])
        """)
    )
    for first, retries in (("yes", 0), ("no", 0), ("yes", 2000)):
        words = ["--first", first, "--retries", str(retries)]
        done = run("--wait", "./comp.py:app", *words)
        assert done.returncode == 127
        assert "a/0 exited with code 127: cannot start 'nosuch'" in done.stderr


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_cancelling_while_it_starts(pause):
    """Is cancelling."""
    with get_runner() as runner:
        handle = runner.run_component("utils.sh", ["sleep 600"])
        time.sleep(pause)
        runner.cancel(handle)
        assert runner.status(handle).state.name == "CANCELLED"


def test_sigterm_comes_once():
    """However often it is asked for."""
    script = "trap 'echo TERM' TERM; echo up; while :; do sleep 0.1; done"
    handle = submit("-cfg", "stop_grace=1", "utils.sh", script)
    wait_until(lambda: phalanx("log", handle).stdout)
    both = [
        subprocess.Popen([sys.executable, "-m", "phalanx", "cancel", handle], stdout=-1)
        for _ in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    for process in both:
        process.stdout.close()
    lines = phalanx("log", handle).stdout.splitlines()
    assert lines.count("sh/0 TERM") == 1


def test_a_status_that_cannot_be_written_does_not_end_the_app(own_registry):
    """It is written when it can be."""
    handle = submit("utils.sh", "echo up; while [ ! -e go ]; do sleep 0.1; done; echo done")
    wait_until(lambda: phalanx("log", handle).stdout)
    path = own_registry / handle.rpartition("/")[2] / "status.json"
    path.unlink()
    (path / "in-the-way").mkdir(parents=True)
    Path("go").touch()
    wait_until(lambda: "sh/0 done" in phalanx("log", handle).stdout)
    time.sleep(0.5)
    (path / "in-the-way").rmdir()
    path.rmdir()
    wait_until(lambda: path.exists())
    assert status(handle)["state"] == "SUCCEEDED"


def test_log_returns_while_the_app_prints_on_and_on():
    """With what there was when it was asked."""
    handle = submit("utils.sh", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaa; done")
    wait_until(lambda: phalanx("log", "-n", "3", handle).stdout)
    assert len(phalanx("log", "-n", "3", handle).stdout.splitlines()) == 3


def test_lines_are_the_same_from_either_end():
    """Of both streams, of one, and in a part of the time."""
    with get_runner() as runner:
        script = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.3; done"
        handle = runner.run_component("utils.sh", [script.replace("$", "$$")])
        runner.wait(handle)
        lines = list(runner.lines(handle, "sh", 0))
        assert len(lines) == 6
        assert list(runner.lines_back(handle, "sh", 0))[::-1] == lines
        out = list(runner.lines(handle, "sh", 0, stream=Stream.STDOUT))
        assert list(runner.lines_back(handle, "sh", 0, stream=Stream.STDOUT))[::-1] == out
        times = {"since": out[1].time, "until": out[2].time}
        part = list(runner.lines(handle, "sh", 0, **times))
        assert 0 < len(part) < 6
        assert list(runner.lines_back(handle, "sh", 0, **times))[::-1] == part


def test_followed_lines_have_their_own_times():
    """Not those of the lines before."""
    with get_runner() as runner:
        handle = runner.run_component("utils.sh", ["echo a; sleep 2; echo b; sleep 2; echo c"])
        lines = list(runner.lines(handle, "sh", 0, follow=True))
    times = [line.time for line in lines]
    assert [line.text for line in lines] == ["a", "b", "c"]
    assert all(later - earlier > 1.0 for earlier, later in zip(times, times[1:]))


def test_both_supervisors_killed_at_once():
    """The replica goes as well."""
    handle = submit("utils.sh", "echo up $$$$; exec sleep 303")
    line = wait_until(lambda: phalanx("log", handle).stdout)
    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    supervisor = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    os.kill(keeper, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not is_alive(int(line.split()[2])))
    assert status(handle)["state"] == "FAILED"
    assert status(handle)["roles"][0]["replicas"][0]["state"] == "FAILED"


def test_what_a_try_leaves_behind_does_not_live_on():
    """Daemons in sessions of their own; nor are orphans left as zombies."""
    script = "setsid sleep 304 & sh -c 'true &'; sleep 0.2; test -e again && exec sleep 300; touch again; exit 1"
    handle = submit("utils.sh", "--max_retries", "1", script)
    wait_until(lambda: status(handle)["num_restarts"] == 1)
    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    supervisor = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])

    def below():
        pids = ",".join(map(str, descendants(supervisor))) or "0"
        found = subprocess.run(
            ["ps", "-o", "stat=,args=", "-p", pids], capture_output=True, text=True
        )
        return [line.split(None, 1) for line in found.stdout.splitlines()]

    def commands():
        return [args for _, args in below()]

    wait_until(lambda: "sleep 300" in commands())  # the second try
    wait_until(lambda: commands().count("sleep 304") == 1)
    wait_until(lambda: not any(state.startswith("Z") for state, _ in below()))


def test_the_error_is_of_the_last_try():
    """Not of one before it."""
    script = (
        'test -e again && exit 4; touch again; echo "OLD" >&2; '
        'echo \'{"message": "OLD"}\' > $$TORCHELASTIC_ERROR_FILE; exit 1'
    )
    assert run("--wait", "utils.sh", "--max_retries", "1", script).returncode == 4
    assert status()["message"] == "sh/0 exited with code 4"


def test_those_that_fail_by_themselves_are_failed():
    """Though another was first."""
    done = run("--wait", "utils.sh", "--num_replicas", "4", "exit 9")
    assert done.returncode == 9
    states = {r["state"] for r in status()["roles"][0]["replicas"] if r["exit_code"] == 9}
    assert states == {"FAILED"}


def only_replica(script, path):
    """What a supervisor has of an app with one replica, not started."""
    logs = {stream: str(path / stream) for stream in ("stdout", "stderr")}
    one = ReplicaRequest("a", 0, ("sh", "-c", script), {}, str(path), "localhost", 0, logs)
    roles = (RoleRequest("a", 0, "APPLICATION", (one,)),)
    replicas = LocalReplicas(AppRequest("x", "x", "local_cwd", "s", "", 30.0, roles), path)
    assert replicas.prepare(lambda _: True, lambda: None) is None
    return replicas, one


@pytest.mark.parametrize(
    ("script", "moment", "expected"),
    [
        ("exit 9", "over", (9, None, False)),
        ("kill -SEGV $$", "over", (None, "SIGSEGV", False)),
        ("sleep 300", "before", (None, "SIGTERM", True)),
        ("trap 'exit 9' TERM; touch ready; sleep 300 & wait", "ready", (9, None, True)),
        (
            "trap '' TERM; touch ready; while [ ! -e go ]; do sleep 0.01; done; exit 9",
            "ready",
            (9, None, True),
        ),
    ],
)
def test_what_had_ended_when_it_was_asked_to_was_not_asked(script, moment, expected, tmp_path):
    """Between its end and our next look another may have failed, and all the others be stopped."""
    replicas, one = only_replica(script, tmp_path)
    try:
        assert replicas.start(one) is None
        if moment == "over":
            wait_until(lambda: has_died(replicas.pid(one.key)))
        elif moment == "ready":
            wait_until((tmp_path / "ready").exists)
        replicas.stop(one.key, 30.0)
        (tmp_path / "go").touch()
        ((key, end),) = wait_until(replicas.ended)
        assert (key, end.exit_code, end.signal, end.asked) == (one.key, *expected)
    finally:
        replicas.close()


@pytest.mark.parametrize("code", [9, -signal.SIGSEGV, -signal.SIGTERM])
def test_what_was_ending_when_it_was_asked_to_was_not_asked(code, tmp_path, monkeypatch):
    """It has no handler: a code, or another signal, is its own."""
    end = f"exit {code}" if code > 0 else f"kill -{-code} $$"
    replicas, one = only_replica(f"while [ ! -e go ]; do sleep 0.01; done; {end}", tmp_path)
    # As if it came while the process ends, and has no effect any more.
    monkeypatch.setattr("phalanx._schedulers.supervised.replicas._signal_group", lambda *_: None)
    try:
        assert replicas.start(one) is None
        replicas.stop(one.key, 30.0)
        (tmp_path / "go").touch()
        ((_, end),) = wait_until(replicas.ended)
        assert end.asked == (code == -signal.SIGTERM)
    finally:
        monkeypatch.undo()
        replicas.close()


def test_the_last_line_says_how_the_app_ended():
    """On stderr, under what replicas print, as for a failure; nobody who only waits is told."""
    done = run("--wait", "--log", "utils.echo", "--msg", "hi")
    handle = done.stdout.strip()
    assert done.stderr == f"echo/0 hi\nphalanx run: {handle}: SUCCEEDED\n"
    assert run("--wait", "utils.echo", "--msg", "hi").stderr == ""


def test_a_path_may_have_macros(tmp_path):
    """Like any variable."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine").write_text("#!/bin/sh\necho own\n")
    (tmp_path / "own" / "mine").chmod(0o755)
    (tmp_path / "comp.py").write_text(
        "from phalanx.specs import AppDef, Role, macros\n"
        "def app() -> AppDef:\n"
        "    env = {'PATH': f'{macros.img_root}/own:/usr/bin:/bin'}\n"
        "    return AppDef('a', [Role('a', entrypoint='mine', env=env)])\n"
    )
    assert run("--log", "./comp.py:app").stderr.startswith("a/0 own\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--stepz'])",
            "exited with code 2: train.py: error: unrecognized arguments: --stepz",
        ),
        (
            "import os, warnings\nwarnings.warn('harmless')\nos.kill(os.getpid(), 9)",
            "was killed by SIGKILL",
        ),
    ],
)
def test_a_worker_that_ends_without_an_error_is_told_of_in_one_sentence(tmp_path, body, said):
    """The worker's own end, not that of the replica; with its parser's sentence, no warning."""
    (tmp_path / "train.py").write_text(body)
    done = run("--wait", "dist.ddp", "-j", "1x1", "train.py", timeout=60)
    line = done.stderr.splitlines()[1]
    assert re.fullmatch(rf"  train/0 failed: rank 0 on \S+ {re.escape(said)}", line), done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-cfg", "stop_grace=nan", "utils.echo"], 2, "0 or more"),
        (["-cfg", "stop_grace=-1", "utils.echo"], 2, "0 or more"),
        (["--wiat", "utils.echo"], 2, "unknown option --wiat. Did you mean --wait?"),
        (["--dryrn", "utils.echo"], 2, "unknown option --dryrn. Did you mean --dryrun?"),
        (["utils..echo"], 1, "is not a component name"),
        (["../x"], 1, "'../x' names no function: write ../x:FUNCTION"),
        (["train.py"], 1, "To run a script: phalanx run utils.python train.py"),
        (["utils..echo"], 1, "is not a component name"),
        (["-s", "", "utils.echo"], 1, "unknown scheduler ''"),
        (["./odd.py:leaves"], 1, "./odd.py:leaves called sys.exit('boom')"),
        (["./odd.py:fine"], 1, "./odd.py:fine called sys.exit(0)"),
        (["./odd.py:literal"], 1, "cannot read its annotations"),
        (["./odd.py:maybe"], 1, "not AppDef"),
        (["./odd.py:later"], 1, "it is an async function"),
        (["./odd.py:fine", "--d", "a=1,a=2"], 2, "'a' is given twice"),
    ],
)
def test_more_mistakes_are_one_clear_sentence(words, code, said, tmp_path):
    """As adversaries make them."""
    (tmp_path / "odd.py").write_text(
        textwrap.dedent("""
        import sys
        from typing import Literal, Optional
        from phalanx.specs import AppDef

        def leaves() -> AppDef: sys.exit("boom")
        def fine(d: dict[str, str] = {}) -> AppDef: sys.exit(0)
        def literal(x: Literal[[1]]) -> AppDef: ...
        def maybe() -> Optional[AppDef]: ...
        async def later() -> AppDef: ...
        """)
    )
    done = run(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not recorded_app.apps()


def test_a_components_own_bug_is_shown_with_its_traceback(tmp_path):
    """What it raises to refuse is not."""
    (tmp_path / "bug.py").write_text(
        "from phalanx.specs import AppDef\n"
        "def bug() -> AppDef:\n    return int('zz')\n"
        "def no() -> AppDef:\n    raise ValueError('not that')\n"
    )
    done = run("./bug.py:bug")
    assert done.returncode == 1
    assert "line 3, in bug" in done.stderr
    done = run("./bug.py:no")
    assert (done.returncode, done.stderr) == (2, "phalanx run: ./bug.py:no: not that\n")


@pytest.mark.parametrize(
    "given",
    [
        {"component_args": 5},
        {"component_args": [1]},
        {"component_args": "--msg hi"},
        {"scheduler": 5},
        {"scheduler_args": 5},
        {"workspace": 5},
        {"dryrun": "no"},
        {"colour": "red"},
    ],
)
def test_stdin_of_other_types_is_refused(given):
    """By the name of the key."""
    done = run("--stdin", input=json.dumps({"component_name": "utils.echo", **given}))
    assert done.returncode == 2
    assert next(iter(given)) in done.stderr
    assert "Traceback" not in done.stderr


def test_stdin_where_a_scheduler_is_configured(tmp_path):
    """The JSON counts, and what it does not say is as configured."""
    (tmp_path / ".phalanxconfig").write_text('[command.run]\nscheduler = "nowhere"\n')
    given = {"component_name": "utils.echo", "wait": True}
    assert "unknown scheduler 'nowhere'" in run("--stdin", input=json.dumps(given)).stderr
    given["scheduler"] = "local_cwd"
    assert run("--stdin", input=json.dumps(given)).returncode == 0


def shell(line, **kwargs):
    """A line of bash in which `phalanx` is this one."""
    line = f'phalanx() {{ "{sys.executable}" -m phalanx "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, **kwargs
    )


@pytest.mark.parametrize("verb", ["launch wait.py:wait", "torchrun --nproc-per-node 1 wait.py"])
def test_a_connection_is_not_taken_for_a_stream_that_was_closed(tmp_path, verb):
    """What a library prints would go into it."""
    (tmp_path / "wait.py").write_text(
        "import os, time\n"
        "def wait():\n"
        "    open('up', 'w').close()\n"
        "    while not os.path.exists('go'):\n"
        "        time.sleep(0.01)\n"
        "if __name__ == '__main__':\n"
        "    wait()\n"
    )
    line = f"exec {sys.executable} -m phalanx {verb} <&- >&- 2>&-"
    with subprocess.Popen(["bash", "-c", line], cwd=tmp_path) as process:
        try:
            wait_until(lambda: (tmp_path / "up").exists() or process.poll() is not None)
            streams = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
        finally:
            (tmp_path / "go").touch()
        assert (process.wait(), streams) == (0, {os.devnull})


def test_streams_that_are_closed_or_full():
    """No traceback; the handle is not lost."""
    done = shell("phalanx run --wait utils.echo >&-")
    assert (done.returncode, done.stderr) == (0, "")
    done = shell("phalanx list >&- 2>&- <&-")
    assert done.returncode == 0
    done = shell("phalanx run --wait utils.echo >/dev/full")
    assert "local_cwd://phalanx/echo-" in done.stderr
    assert "Traceback" not in done.stderr
    done = shell("phalanx run --stdin <&-")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    done = shell(
        "phalanx run --log utils.sh 'echo ü' 2>&1; phalanx log | cat",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert "Traceback" not in done.stdout


def test_directories_that_are_gone_or_closed(tmp_path):
    """One sentence each."""
    done = shell("mkdir gone; cd gone; rmdir ../gone; phalanx run utils.echo; phalanx configure")
    assert "the current directory no longer exists" in done.stderr
    for command in (
        "launch os:getpid",
        "launch fn.py:f",
        "torchrun fn.py",
        "torchrun -m fn",
        "run ./fn.py:f",
        "map fn.py:f items",
        "configure",
    ):
        done = shell(f"mkdir gone; cd gone; rmdir ../gone; phalanx {command}")
        assert "the current directory no longer exists" in done.stderr, command
        assert (done.returncode in (1, 2), "Traceback" in done.stderr) == (True, False)
    env = {**os.environ, "XDG_STATE_HOME": "relative"}
    assert run("--wait", "utils.echo", env=env).returncode == 0
    assert not (tmp_path / "relative").exists()


def test_a_configuration_that_cannot_be_read_does_not_hinder_the_rest(tmp_path):
    """Apps can be listed and ended all the same, and help is help."""
    (tmp_path / ".phalanxconfig").write_text("[[[")
    done = phalanx("list")
    assert (done.returncode, "invalid TOML" in done.stderr) == (0, True)
    assert run("--help").returncode == 0
    assert run("utils.echo").returncode == 2
    (tmp_path / ".phalanxconfig").write_text('[command.log]\nstreams = "x"\n')
    assert phalanx("log").returncode == 2


def test_replicas_that_are_too_many_or_upside_down():
    """Are refused, not counted."""
    handle = submit("utils.echo")
    for text in ("0-999999999999", "4-2"):
        done = phalanx("log", f"{handle}/echo/{text}")
        assert (done.returncode, "is not a range" in done.stderr) == (1, True)
    assert phalanx("log", "-f", handle).returncode == 0
    assert phalanx("log", handle, "-n", "9" * 30).returncode == 0


def test_records_that_others_have_spoilt(own_registry):
    """Hinder nobody."""
    handle = submit("utils.echo")
    phalanx("log", "-f", handle)
    path = own_registry / handle.rpartition("/")[2]
    (path / "status.json").write_text('{"state": [1], "seconds": "x", "replicas": [{}, 3]}')
    (own_registry / "dangling").symlink_to("/nowhere")
    assert phalanx("list").returncode == 0
    assert phalanx("status", handle).returncode == 0
    facts = json.loads((path / "app.json").read_text())
    (path / "app.json").write_text(json.dumps({**facts, "created": 1e300}))
    assert phalanx("list").returncode == 0
    assert phalanx("clean", "--older-than", "0").returncode == 0


def test_deleting_leaves_no_directories(tmp_path):
    """Of a log_dir."""
    handle = submit("-cfg", "log_dir=out", "utils.echo")
    phalanx("log", "-f", handle)
    assert phalanx("delete", handle).returncode == 0
    assert [path for path in (tmp_path / "out").rglob("*") if path.name != "phalanx"] == []


def test_a_submitter_that_ignores_its_children():
    """A program's own signal settings are not the supervisor's."""
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from phalanx.runner import get_runner\n"
        "with get_runner() as r:\n"
        "    print(r.wait(r.run_component('utils.sh', ['exit 3'])).exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "3\n", done.stderr


OWN_STATE = """
import atexit, faulthandler, logging, os, select, signal, sys, time, warnings

atexit.register(print, "left")
os.register_at_fork(after_in_child=lambda: open("forked", "w").write(sys.argv[1]))
sys.excepthook = lambda *_: print("hooked")
sys.settrace(lambda *_: None)
faulthandler.enable()
warnings.simplefilter("error")
signal.signal(signal.SIGTERM, lambda *_: print("terminated", flush=True))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
logging.basicConfig(filename="kept", filemode="w", level=logging.DEBUG, format="%(message)s")
print("before")

def submit():
    from phalanx.runner import get_runner

    time.time = time.monotonic = lambda: 1.5  # as those do that try how a program ages
    select.select = None
    with get_runner() as runner:
        print(runner.run_component("utils.sh", ["echo to the replica; sleep 300"]))

async def main():
    submit()

if sys.argv[1] == "loop":
    import asyncio

    asyncio.run(main())
else:
    submit()
logging.warning("once")
"""


@pytest.mark.parametrize("program", ["plain", "loop"])
def test_a_supervisor_has_nothing_of_the_programs(script, tmp_path, program):
    """Neither what it has opened or handles, nor what it has put in place of Python's own."""
    (read, written) = os.pipe()
    os.set_inheritable(written, True)
    with script.start(OWN_STATE, program, pass_fds=[written]) as process:
        os.close(written)
        out, err = process.communicate(timeout=100)
    before, handle, left = out.splitlines()
    assert (before, left, err) == ("before", "left", "")
    assert (tmp_path / "kept").read_text().endswith("once\n")
    assert not (tmp_path / "forked").exists()
    assert os.read(read, 1) == b""  # nobody holds the program's descriptor
    os.close(read)
    line = wait_until(lambda: phalanx("log", handle).stdout)
    assert line == "sh/0 to the replica\n"

    keeper = recorded_app.get(handle.rpartition("/")[2]).facts["owner"]["pid"]
    told = Path(f"/proc/{keeper}/cmdline").read_bytes()
    assert told.startswith(b"phalanx: ")
    assert Path(f"/proc/{keeper}/comm").read_text().endswith("-supervisor\n")
    assert os.getsid(keeper) == keeper
    os.kill(keeper, signal.SIGUSR1)  # means nothing to it
    assert status(handle)["state"] == "RUNNING"
    os.kill(keeper, signal.SIGTERM)  # ends the app in order
    wait_until(lambda: status(handle)["state"] == "CANCELLED")
    wait_until(lambda: not is_alive(keeper))
    log = recorded_app.get(handle.rpartition("/")[2]).path / "supervisor.log"
    assert log.read_text() == ""


def test_a_fork_is_known_for_what_it_is_before_its_command_may_end(script):
    """Whoever ends what a replica has left behind would not know it otherwise."""
    done = script("""
        import functools, os, time
        from phalanx._schedulers.supervised.supervisor_process import is_supervisor, title_of
        from phalanx._system import sessions

        pid = sessions.fork_session(functools.partial(time.sleep, 100), title_of("app"), "log")
        print(is_supervisor(pid), os.getsid(pid) == pid, os.listdir(f"/proc/{pid}/fd"))
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    """)
    assert done.stdout.startswith("True True "), done.stderr


@pytest.mark.parametrize(
    ("done_before", "can"),
    [
        ("own_process.begin()", True),
        ("pass", False),
        ("own_process.begin(); import mine", False),
        ("own_process.begin(); import threading; threading.Thread(target=sleep).start()", False),
        ("own_process.begin(); os.environ['RANK'] = '0'", False),
    ],
)
def test_only_what_is_all_ours_is_forked(script, tmp_path, done_before, can):
    """Nobody's program, nor a command that has loaded somebody's module."""
    (tmp_path / "mine.py").touch()
    done = script(f"""
        import functools, os, time
        from phalanx._system import own_process, sessions

        sleep = functools.partial(time.sleep, 1)
        {done_before}
        print(sessions.can_fork_session())
    """)
    assert done.stdout == f"{can}\n", done.stderr


def test_an_app_outlives_a_replica_that_submits_it_with_an_empty_environment(tmp_path):
    """Its supervisor is known as one, though a short command line has no room for its title."""
    code = "import sys\nfrom phalanx._cli import run\n"
    code += "sys.argv[1:] = ['run', 'utils.sh', 'sleep 1; echo done']\nrun()\n"
    (tmp_path / "s").write_text(code)
    os.symlink(sys.executable, tmp_path / "p")
    state = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}"
    outer = submit(
        "utils.sh", f"env -i {state} PYTHONPATH={':'.join(filter(None, sys.path))} ./p s"
    )
    wait_until(lambda: status(outer)["state"] == "SUCCEEDED")
    handle = phalanx("log", outer).stdout.split()[1]
    wait_until(lambda: status(handle)["state"] not in ("PENDING", "RUNNING"))
    assert status(handle)["state"] == "SUCCEEDED"
    assert phalanx("log", handle).stdout == "sh/0 done\n"


def test_files_of_a_workspace(tmp_path):
    """One mechanism with shipping to hosts."""
    from phalanx.schedulers import workspace_files

    for name in ("a.py", "sub/b.py", "data/big.bin", "__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".phalanxignore").write_text("data/\n")
    assert {"a.py", "sub/b.py"} <= set(workspace_files(str(tmp_path)))
    assert not {"data/big.bin", "__pycache__/x.pyc"} & set(workspace_files(str(tmp_path)))


def test_threads_leave_the_programs_stdout_alone():
    """Several runners at once, and a main thread that prints."""
    code = (
        "import sys, threading\n"
        "from phalanx.runner import get_runner\n"
        "def work():\n"
        "    with get_runner() as r:\n"
        "        r.wait(r.run_component('utils.sh', ['sleep 0.5']))\n"
        "before = sys.stdout\n"
        "threads = [threading.Thread(target=work) for _ in range(6)]\n"
        "for t in threads: t.start()\n"
        "while any(t.is_alive() for t in threads): print('mine')\n"
        "assert sys.stdout is before\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_lines_that_are_followed_are_on_stdout():
    """From several replicas."""
    script = "for i in 1 2 3 4 5; do echo $$i; sleep 0.1; done"
    handle = submit("utils.sh", "--num_replicas", "8", script)
    done = phalanx("log", "-f", "--json", handle)
    assert done.stderr == ""
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 40


def test_a_replica_that_has_ended_is_shown_as_that():
    """Though nothing follows from it."""
    handle = submit("utils.sh", "--num_replicas", "2", "[ ${replica_id} = 0 ] || sleep 300")
    replica = lambda: status(handle)["roles"][0]["replicas"][0]
    wait_until(lambda: (replica()["state"], replica()["exit_code"]) == ("SUCCEEDED", 0))
    assert status(handle)["state"] == "RUNNING"


def test_what_components_and_their_children_print_is_not_the_handle(tmp_path):
    """Nor are there files left of a dry run."""
    (tmp_path / "loud.py").write_text(
        "import os, phalanx.specs as specs\nprint('loading')\n"
        "def loud() -> specs.AppDef:\n"
        "    print('building'); os.system('echo child')\n"
        "    return specs.AppDef('a', [specs.Role('a', entrypoint='true')])\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = run("--dryrun", "./loud.py:loud", env=env)
    assert done.stdout.startswith("=== APPLICATION ===")
    assert sorted(done.stderr.split()) == ["building", "child", "loading"]
    assert not (tmp_path / "__pycache__").exists()
    done = run("--wait", "./loud.py:loud")
    assert len(done.stdout.splitlines()) == 1


def test_a_supervisor_that_dies_in_its_first_steps_is_not_waited_for(script):
    """It was gone before it could be recorded: nothing tells it from one that never was."""
    done = script("""
        import sys
        from phalanx import _cli
        from phalanx._system import sessions

        def fail(log):
            raise OSError("no descriptor is left")

        sessions._replace_streams = fail
        sys.argv = ["phalanx", "run", "--wait", "utils.echo"]
        _cli.run()
    """)
    assert done.returncode == 1
    assert "FAILED" in done.stderr and "supervisor" in done.stderr


def test_an_app_that_a_replica_submits_outlives_it():
    """Though whatever else it leaves behind does not."""
    inner = f"{sys.executable} -m phalanx run utils.sh 'sleep 2; echo inner is done'"
    done = run("--wait", "--log", "utils.sh", f"setsid sleep 305 & {inner}")
    assert done.returncode == 0
    (handle,) = re.findall(r"^sh/0 (local_cwd://\S+)$", done.stderr, re.MULTILINE)
    assert phalanx("log", "-f", handle).stdout == "sh/0 inner is done\n"
    assert status(handle)["state"] == "SUCCEEDED"


def test_a_record_that_is_removed_ends_those_who_follow(own_registry):
    """And the supervisor does not wait for it to come back."""
    import shutil

    handle = submit("utils.sh", "for i in 1 2 3 4 5; do echo $$i; sleep 0.3; done")
    following = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "log", "-f", handle], stdout=-1, stderr=-1, text=True
    )
    assert following.stdout.readline() == "sh/0 1\n"
    shutil.rmtree(own_registry / handle.rpartition("/")[2])
    following.communicate(timeout=60)


def test_a_log_dir_that_cannot_be_made_is_refused(tmp_path):
    """Before anything is started."""
    (tmp_path / "file").touch()
    for place in ("/proc/nowhere", "file"):
        done = run("-cfg", f"log_dir={place}", "utils.echo")
        assert (done.returncode, done.stdout) == (1, "")
        assert "cannot create the log directory" in done.stderr
    assert not recorded_app.apps()


def test_an_empty_name_means_no_app():
    """`phalanx cancel "$handle"` of a script whose run had failed."""
    handle = submit("utils.sh", "sleep 300")
    wait_until(lambda: status(handle)["state"] == "RUNNING")
    for verb in ("status", "cancel", "delete", "log", "describe"):
        assert phalanx(verb, "").returncode == 1, verb
    assert status(handle)["state"] == "RUNNING"
    assert status(handle[:-4])["state"] == "RUNNING"


def test_followers_hear_of_a_failure():
    """Also of one that prints nothing."""
    handle = submit("utils.sh", "exit 9")
    done = phalanx("log", "-f", handle)
    assert "FAILED: sh/0 exited with code 9" in done.stderr
    assert phalanx("log", f"{handle}/0").returncode == 0


def test_config_tells_what_is_wrong(tmp_path):
    """Settings, values and sections; with the file."""
    path = tmp_path / ".phalanxconfig"
    path.write_text(
        '[scheduler.local_cwd]\ngrace = 2\nstop_grace = "two"\n[scheduler.local_cw]\na = 1\n'
        '[component."utils.echo"]\nmsgg = "x"\n[component."utils.ecco"]\nmsg = "x"\n'
        "[command.rum]\nwait = true\n"
    )
    done = phalanx("config")
    assert done.returncode == 1
    for said in (
        f"{path}: local_cwd has no option 'grace'. Did you mean 'stop_grace'?",
        f"{path}: local_cwd: option 'stop_grace': 'two' is not a number.",
        "[scheduler.local_cw]: unknown scheduler",
        f"{path}: utils.echo has no option 'msgg'. Did you mean --msg?",
        '[component."utils.ecco"]: unknown component',
        "[command.rum]: unknown command",
    ):
        assert said in done.stderr
    path.write_text('[scheduler.local_cwd]\nstop_grace = "two"\n')
    assert f"{path}: local_cwd: option" in run("utils.echo").stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a table of processes of its own needs root")
def test_a_container_with_this_hosts_name_does_not_think_it_dead():
    """It cannot see the process, and knows that."""
    handle = submit("utils.sh", "sleep 300")
    wait_until(lambda: status(handle)["state"] == "RUNNING")
    done = subprocess.run(
        ["unshare", "-pf", "--mount-proc", sys.executable, "-m", "phalanx", "status", handle],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "RUNNING" in done.stdout, done.stderr


def test_what_a_replica_has_started_has_the_grace_as_well():
    """Its shell ends at once; the program below it saves first."""
    save = (
        "import signal, sys, time\n"
        "def save(*_): time.sleep(0.7); print('saved'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, save); print('up'); time.sleep(300)"
    )
    Path("save.py").write_text(save)
    for scheduler in ([], ["-s", "ssh", "--hosts", "localhost"]):
        handle = submit(*scheduler, "utils.sh", f"{sys.executable} save.py; echo after")
        wait_until(lambda: phalanx("log", handle).stdout == "sh/0 up\n")
        assert phalanx("cancel", handle).returncode == 0
        assert phalanx("log", handle).stdout == "sh/0 up\nsh/0 saved\n"


def test_waiting_for_an_app_that_is_cancelled_exits_with_1():
    """Whatever its replicas made of it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "--wait", "utils.sh"]
        + ["trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"],
        stdout=-1,
        stderr=-1,
        text=True,
    )
    handle = process.stdout.readline().strip()
    wait_until(lambda: phalanx("log", handle).stdout)
    assert phalanx("cancel", handle).returncode == 0
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_component_of_a_file_finds_its_neighbours_when_it_is_called(tmp_path):
    """Not only when it is loaded."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "beside.py").write_text("TEXT = 'found'\n")
    (tmp_path / "there" / "comp.py").write_text(
        "from phalanx.specs import AppDef, Role\n"
        "def late() -> AppDef:\n    import beside\n"
        "    return AppDef('a', [Role('a', entrypoint='echo', args=[beside.TEXT])])\n"
    )
    assert run("--log", "there/comp.py:late").stderr.startswith("a/0 found\n")


BLAMING = """
import json, os, signal, sys, time
from pathlib import Path

replica, real, how, order = sys.argv[1:]
elsewhere = replica != real
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(replica + ".new").write_text(str(os.getpid()))
os.rename(replica + ".new", replica)
other = Path(str(1 - int(replica)))
while not other.exists():
    time.sleep(0.01)
if elsewhere is (order == "real"):  # then the other one ends first
    try:
        while ") Z " not in Path("/proc", other.read_text(), "stat").read_text():
            time.sleep(0.01)
    except OSError:
        pass
if how == "killed" and not elsewhere:
    os.kill(os.getpid(), signal.SIGKILL)
facts = {"rank": int(real), "hostname": "h", "is_remote": elsewhere, "py_callstack": ""}
text = "heard of it" if elsewhere else "ValueError: boom"
Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(
    json.dumps({"message": {"message": text, "extraInfo": facts}})
)
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("how", "order"), [("raised", "heard"), ("raised", "real"), ("killed", "real")]
)
@pytest.mark.parametrize("real", ["0", "1"])
def test_a_replica_that_has_only_heard_of_a_failure_is_not_its_cause(tmp_path, real, how, order):
    """Whichever of them ends first, or both at once."""
    (tmp_path / "blame.py").write_text(BLAMING)
    (tmp_path / "comp.py").write_text(
        "import sys\nfrom phalanx.specs import AppDef, Role, macros\n\n\n"
        "def two(real: str, how: str, order: str) -> AppDef:\n"
        '    """Two replicas, of which one fails."""\n'
        "    args = ['blame.py', macros.replica_id, real, how, order]\n"
        "    role = Role('w', '', entrypoint=sys.executable, args=args, num_replicas=2)\n"
        "    return AppDef('app', roles=[role])\n"
    )
    words = ("--real", real, "--how", how, "--order", order)
    done = run("--wait", "./comp.py:two", *words)
    assert done.returncode != 0
    message = status(done.stdout.split()[0])["message"]
    assert message.startswith(f"w/{real} "), (message, done.stderr)
    assert "heard of it" not in message

"""The parts of the `slurm` scheduler that are pure: options, the script, what Slurm prints."""

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from phalanx._schedulers.options import make, make_from_python
from phalanx._schedulers.slurm import controller as slurm_controller
from phalanx._schedulers.slurm.controller import (
    Controller,
    ControllerUnreachable,
    JobState,
    environment,
    parse_jobs,
)
from phalanx._schedulers.slurm.layout import JobDirectory
from phalanx._schedulers.slurm.options import SlurmOptions
from phalanx._schedulers.slurm.script import ScriptRole, make_script
from phalanx._schedulers.slurm.status import SeenSlurmJob, RecordedRole, assess
from phalanx._specs import AppState, Resource
from phalanx.errors import ConfigError, SchedulerError

SMALL = Resource(cpu=2, gpu=0, memMB=1024)


def script(*roles, **options):
    """The script of roles that run `true`, by name or as they are."""
    made = tuple(
        role if isinstance(role, ScriptRole) else ScriptRole(role, 2, ("true",), {}, "/w", SMALL)
        for role in roles
    )
    return make_script("app-1", "/jobs/app-1", made, SlurmOptions(**options), ("python3", "r.py"))


def directives(text):
    return [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")
    ]


def test_options_become_directives():
    """By sbatch's own names, and only those that were given."""
    given = {
        **{"partition": "gpu", "time": "2:00:00", "mem": "8G", "gres": "gpu:2", "qos": "long"},
        **{"mail_type": "END", "mail_user": "me@site", "comment": "a sweep"},
    }
    found = directives(script("a", exclusive=True, **given))
    for name, value in given.items():
        key = f"--{name.replace('_', '-')}"
        assert {f"{key}={value}", f"{key}='{value}'", f'{key}="{value}"'} & {*found}, (key, found)
    assert "--exclusive" in found
    assert not [line for line in found if line.startswith("--account")]


def test_any_other_directive_can_be_given():
    """With a value or without."""
    options = make("slurm", SlurmOptions, {"sbatch": "reservation:big,spread_job:"})
    found = directives(
        make_script(
            "a", "/j/a", (ScriptRole("r", 1, ("true",), {}, "/", SMALL),), options, ("python3",)
        )
    )
    assert "--reservation=big" in found
    assert "--spread-job" in found


def test_memory_that_nobody_asked_for_is_left_to_the_partition():
    """Components have 1024 MB by default, in which no training runs."""
    large = ScriptRole("a", 1, ("true",), {}, "/", Resource(cpu=1, gpu=0, memMB=64000))
    assert not [line for line in directives(script("a")) if line.startswith("--mem")]
    assert "--mem=64000M" in directives(script(large))


def test_gpus_of_a_role_are_asked_for_once():
    """An option wins over what the role says."""
    role = ScriptRole("a", 1, ("true",), {}, "/", Resource(cpu=1, gpu=4, memMB=0))
    assert "--gpus-per-node=4" in directives(script(role))
    assert "--gpus-per-node=a100:8" in directives(script(role, gpus_per_node="a100:8"))
    assert "--gpus-per-node=4" not in directives(script(role, gres="gpu:2"))


def test_one_role_is_a_plain_job_and_several_a_heterogeneous_one():
    """Each has what it asks for."""
    assert "hetjob" not in directives(script("a"))
    text = script("a", "b", mail_type="END")
    found = directives(text)
    assert found.count("hetjob") == 1
    assert found.count("--nodes=2") == 2
    assert found.count("--mail-type=END") == 1
    assert "--het-group=1" in text


def test_no_variable_of_a_role_is_an_argument():
    """Arguments can be read by everybody on a host."""
    role = ScriptRole("a", 1, ("true", "x y"), {"KEY": "se cret"}, "/", SMALL)
    lines = script(role).splitlines()
    assert [line.strip() for line in lines if "se cret" in line] == ["export KEY='se cret'"]
    assert any(line.endswith("-- true 'x y'") for line in lines)


@pytest.mark.parametrize("roles", [("a",), ("a", "b")])
@pytest.mark.parametrize("options", [{}, {"requeue": True}, {"signal": "0"}])
def test_a_shell_can_read_the_script(roles, options, tmp_path):
    """Whatever it was made from; it is one line that would be wrong otherwise."""
    odd = ScriptRole("it's", 1, ("sh", "-c", "echo '$x'\n`"), {"A": "'\"\n"}, "/a b", SMALL)
    text = script(*roles, odd, **options)
    assert text.count("\n#SBATCH") >= 5
    assert text.endswith('exit "$code"\n')


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partiton": "a"}, "Did you mean 'partition'"),
        ({"time": "soon"}, "not a time limit"),
        ({"signal": "KILL@5"}, "not a signal that can be handled"),
        ({"signal": "x"}, "expected [SIGNAL@]SECONDS"),
        ({"cpus": "0"}, "must be 1 or more"),
        ({"comment": "a\n#SBATCH --exclusive"}, "more than one line"),
        ({"sbatch": "array:1-4"}, "an app is one job"),
        ({"sbatch": "partition:a"}, "by its own option"),
        ({"sbatch": "cpus-per-task:4"}, "-cfg cpus="),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    """Before anything is submitted, in one sentence."""
    with pytest.raises(ConfigError) as caught:
        make("slurm", SlurmOptions, given)
    assert words in str(caught.value)


def test_a_warning_is_a_signal_and_a_lead():
    """USR1 where only the seconds are given."""
    assert SlurmOptions(signal="120").warning == ("USR1", 120)
    assert SlurmOptions(signal="SIGTERM@30").warning == ("TERM", 30)
    assert "--signal=B:USR1@30" in directives(script("a", signal="TERM@30"))


def test_what_squeue_and_sacct_print_is_read():
    """Of a heterogeneous job, the component that tells most."""
    text = "7|PENDING|(Resources)||debug\n8+0|RUNNING|None|n1|debug\n8+1|FAILED|x|n2|debug\n"
    text += "9|CANCELLED by 1000|None|None assigned|debug\n# noise\n"
    found = parse_jobs(text)
    assert found["7"].app_state is AppState.PENDING
    assert found["8"] == JobState("FAILED", "x", "n2", "debug")
    assert found["9"] == JobState("CANCELLED", "", "", "debug")


@pytest.mark.parametrize(
    ("state", "meant"),
    [
        ("CONFIGURING", AppState.PENDING),
        ("COMPLETING", AppState.RUNNING),
        ("COMPLETED", AppState.SUCCEEDED),
        ("TIMEOUT", AppState.FAILED),
        ("NODE_FAIL", AppState.FAILED),
        ("OUT_OF_MEMORY", AppState.FAILED),
    ],
)
def test_slurms_states_are_ours(state, meant):
    """Each of them means one."""
    assert JobState(state).app_state is meant


class FakeCommands:
    """What commands would print; the real ones are in tests/cluster."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, command, **_):
        self.asked.append(command)
        code, out, err = self.answers[command[0]]
        return subprocess.CompletedProcess(command, code, out, err)


def test_many_who_wait_ask_once():
    """Threads share the answer, which is a second old at most."""
    commands = FakeCommands(squeue=(0, "1|RUNNING|None|n1|debug\n2|PENDING|x||debug\n", ""))
    controller = Controller(commands)
    assert controller.jobs(["1", "2"])["2"].state == "PENDING"
    threads = [threading.Thread(target=controller.jobs, args=(["1"],)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commands.asked) <= 2


def test_jobs_that_are_expected_are_asked_for_with_the_first(monkeypatch):
    """One question for all; those that nobody wants to know of any more are asked for no longer."""
    rows = "".join(f"{number}|PENDING|x||debug\n" for number in range(40))
    commands = FakeCommands(squeue=(0, rows, ""))
    controller = Controller(commands)
    monkeypatch.setattr(slurm_controller, "INTERVAL", 60.0)
    for number in range(40):
        controller.expect([str(number)])
    for number in range(40):
        assert controller.jobs([str(number)])[str(number)].state == "PENDING"
    assert len(commands.asked) == 1
    controller = Controller(commands)
    controller.expect(["1"])
    monkeypatch.setattr(slurm_controller, "_WANTED", 0.0)
    controller.jobs(["2"])
    assert commands.asked[-1][3] == "--jobs=2"


def test_questions_of_all_kinds_and_threads_have_one_turn_each(monkeypatch):
    """Those who submit while nobody answers share a ping with those who wait for jobs."""
    for name, seconds in {"INTERVAL": 0.1, "WHILE_DOWN": 0.2, "UNREACHABLE_FOR": 1.0}.items():
        monkeypatch.setattr(slurm_controller, name, seconds)
    down = (1, "", "sbatch: error: Unable to contact slurm controller (connect failure)\n")
    commands = FakeCommands(sbatch=down, squeue=down, scontrol=(0, "Slurmctld at x is DOWN", ""))
    controller = Controller(commands)
    submitted = threading.Event()

    def submit():
        with pytest.raises(SchedulerError, match="does not answer"):
            controller.submit("app", "script.sh", "/")

    def look():
        while not submitted.wait(0.01):
            with pytest.raises(ControllerUnreachable):
                controller.jobs(["1"])

    began = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        looks = [pool.submit(look) for _ in range(4)]
        for one in [pool.submit(submit) for _ in range(8)]:
            one.result()
        submitted.set()
        assert [one.result() for one in looks] == [None] * 4
    asked = [command[0] for command in commands.asked if command[0] != "sbatch"]
    assert {*asked} == {"squeue", "scontrol"}
    assert len(asked) <= (time.monotonic() - began) / 0.1 + 1


def test_a_controller_that_is_down_is_a_fact():
    """In its own words; and it is not asked again at once."""
    commands = FakeCommands(squeue=(1, "", "slurm_load_jobs error: Unable to contact (x)\n"))
    controller = Controller(commands)
    for _ in range(5):
        with pytest.raises(ControllerUnreachable, match="Unable to contact"):
            controller.jobs(["1"])
    assert len(commands.asked) == 1


def test_a_refusal_has_slurms_own_words():
    """In one line, the reason first."""
    errors = "sbatch: error: invalid partition specified: nope\n"
    errors += "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    controller = Controller(FakeCommands(sbatch=(1, "", errors)))
    with pytest.raises(SchedulerError) as caught:
        controller.submit("app", "script.sh", "/")
    assert str(caught.value) == (
        "Slurm refused the job: Invalid partition name specified; invalid partition specified: nope"
    )


def test_a_cancellation_that_slurm_has_not_heard_is_told():
    """Also where scancel exits as if it had."""
    errors = "scancel: error: Unable to establish control machine address\n"
    errors += "scancel: error: Kill job error on job id 2: No error\n"
    with pytest.raises(SchedulerError, match="cannot cancel job 2: .*control machine address"):
        Controller(FakeCommands(scancel=(0, "", errors))).cancel("2")
    gone = "scancel: error: Kill job error on job id 2: Invalid job id specified\n"
    for code in (0, 1):
        Controller(FakeCommands(scancel=(code, "", gone))).cancel("2")


def test_a_machine_without_a_configuration_is_not_a_refusal():
    """Nobody was asked."""
    errors = "sbatch: error: fetch_config: DNS SRV lookup failed\n"
    errors += "sbatch: error: _establish_config_source: failed to fetch config\n"
    errors += "sbatch: fatal: Could not establish a configuration source\n"
    with pytest.raises(SchedulerError, match="^Slurm has no configuration here: .* SLURM_CONF"):
        Controller(FakeCommands(sbatch=(1, "", errors))).submit("app", "script.sh", "/")


def test_a_job_that_was_submitted_unheard_is_not_submitted_twice(monkeypatch):
    """The controller's answer was lost, not the job."""
    monkeypatch.setattr(slurm_controller, "INTERVAL", 0.01)
    timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv\n"
    commands = FakeCommands(
        sbatch=(1, "", timed_out),
        scontrol=(0, "Slurmctld(primary) at x is UP\n", ""),
        squeue=(0, "17\n", ""),
    )
    assert Controller(commands).submit("app", "script.sh", "/") == "17"
    assert [command[0] for command in commands.asked] == ["sbatch", "scontrol", "squeue"]
    assert "--name=app" in commands.asked[-1]


def test_a_job_does_not_inherit_the_job_it_is_submitted_from():
    """Slurm would take its variables for wishes."""
    given = {"A": "1", "SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "x", "RANK": "3"}
    assert environment(given) == {"A": "1", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "x"}


def test_numbers_are_taken_where_texts_are():
    """A time of 60 minutes, as in Python."""
    given = {"time": 60, "mem": "500M", "cpus": 2}
    made = make_from_python("slurm", SlurmOptions, given)
    assert (made.time, made.mem, made.cpus) == ("60", "500M", 2)
    with pytest.raises(ConfigError, match="'time'"):
        make_from_python("slurm", SlurmOptions, {"time": True})


def test_a_replica_of_an_earlier_try_says_nothing_of_this_one(tmp_path):
    """Neither while the job is queued again nor before the replica has begun again."""
    files = JobDirectory(tmp_path)
    (tmp_path / "replicas").mkdir()
    ended = {"state": "ENDED", "code": 1, "hostname": "n1", "pid": 7, "ended": 5.0, "restarts": 0}
    (tmp_path / "replicas" / "0-0.json").write_text(json.dumps(ended))
    roles = [RecordedRole("r", 1, "/")]
    new = {"state": "PENDING", "hostname": "", "pid": None, "exit_code": None, "error": ""}
    for control, state in (("try 0\n", "PENDING"), ("try 1\n", "RUNNING")):
        (tmp_path / "control").write_text(control)
        job = SeenSlurmJob("3", JobState(state, "BeginTime"))
        found = assess(files, roles, job, cancel_asked=False, created=0.0)
        assert found["replicas"][0].items() >= new.items()
    assert found["num_restarts"] == 1


@pytest.mark.parametrize(
    ("slurm", "state"),
    [
        (SeenSlurmJob("3", JobState("PENDING", "BeginTime")), "PENDING"),
        (SeenSlurmJob("3", JobState("COMPLETING")), "RUNNING"),
        (SeenSlurmJob("3", silence="timed out"), "PENDING"),
        (SeenSlurmJob("3", JobState("FAILED", "NonZeroExitCode")), "FAILED"),
        (SeenSlurmJob("3"), "FAILED"),
    ],
)
def test_a_failure_that_a_requeue_has_caused_is_none_while_the_job_goes_on(tmp_path, slurm, state):
    """The script may write it down before Slurm ends it; another try may fail by itself."""
    files = JobDirectory(tmp_path)
    (tmp_path / "replicas").mkdir()
    (tmp_path / "control").write_text("try 0\n")
    (tmp_path / "result").write_text("137\n")
    (tmp_path / "slurm.log").write_text(
        "slurmstepd-n1: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-16T19:34:41 DUE TO JOB "
        "REQUEUE ***\n"
    )
    found = assess(files, [RecordedRole("r", 1, "/")], slurm, cancel_asked=False, created=0.0)
    assert found["state"] == state


@pytest.mark.parametrize(
    ("codes", "seen", "state", "code", "message"),
    [
        ((0, 0), None, "SUCCEEDED", 0, ""),
        ((0, 3), None, "FAILED", 3, "r/1 exited with code 3"),
        ((0, 3), JobState("FAILED", "NonZeroExitCode"), "FAILED", 3, "r/1 exited with code 3"),
        ((0, None), None, "FAILED", 1, "Slurm no longer knows job 3, and its end was not recorded"),
        ((None, None), JobState("TIMEOUT"), "FAILED", 1, "the time limit was reached"),
    ],
)
def test_without_the_scripts_word_those_of_the_replicas_count(
    tmp_path, codes, seen, state, code, message
):
    """Its disk was full in the end, and Slurm forgets jobs after some minutes."""
    (tmp_path / "replicas").mkdir()
    (tmp_path / "control").write_text("try 0\n")
    for number, ended in enumerate(codes):
        facts = {"state": "RUNNING"} if ended is None else {"state": "ENDED", "code": ended}
        (tmp_path / "replicas" / f"0-{number}.json").write_text(json.dumps(facts))
    roles, job = [RecordedRole("r", 2, "/")], SeenSlurmJob("3", seen)
    found = assess(JobDirectory(tmp_path), roles, job, cancel_asked=False, created=0.0)
    assert (found["state"], found["exit_code"]) == (state, code)
    assert found["message"].partition(".")[0] == message

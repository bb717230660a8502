"""The command line of `phalanx torchrun`: torchrun's own, and what it means."""

import os
import re
import signal
import subprocess
import sys

import pytest

from phalanx._system import machine
from phalanx._elastic.command import flags, given_flags
from phalanx._elastic.command.torchrun_options import parse
from phalanx.errors import ConfigError

UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")


def options(line, **environ):
    return parse(line.split(), environ)


def refusal(line, **environ):
    with pytest.raises(ConfigError) as caught:
        parse(line.split(), environ)
    return str(caught.value)


def test_nothing_said():
    """One worker, on a host alone, at any free port."""
    said = options("train.py")
    assert (said.min_hosts, said.max_hosts, said.workers) == (1, 1, 1)
    assert (said.backend, said.endpoint) == ("c10d", "localhost:0")
    assert (said.endpoint_host, said.endpoint_port, said.standalone) == ("localhost", 0, True)
    assert UUID.fullmatch(said.run_id)
    assert said.run_id != options("train.py").run_id
    assert (said.kind, said.program, said.arguments) == ("script", "train.py", ())
    assert said.python == sys.executable
    assert (said.max_restarts, said.monitor_interval, said.shutdown_timeout) == (0, 0.1, 30)
    assert said.signals_to_handle == tuple(
        map(signal.Signals.__getitem__, ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
    )
    assert (said.redirects, said.tee, said.log_dir) == ((0,), (0,), None)
    assert said.local_ranks_filter is said.ranks_filter is said.omp_num_threads is None
    assert said.notes == ()


@pytest.mark.parametrize(
    ("line", "backend", "endpoint", "host", "port", "run_id"),
    [
        ("--standalone", "c10d", "localhost:0", "localhost", 0, None),
        (
            "--standalone --rdzv-backend etcd --rdzv-id x",
            "c10d",
            "localhost:0",
            "localhost",
            0,
            None,
        ),
        ("--rdzv-id x", "c10d", "localhost:0", "localhost", 0, None),
        ("--master-port 0", "static", "127.0.0.1:0", "127.0.0.1", 0, "none"),
        ("--master-port 1234", "static", "127.0.0.1:1234", "127.0.0.1", 1234, "none"),
        ("--nnodes 1:2", "static", "127.0.0.1:29500", "127.0.0.1", 29500, "none"),
        ("--nnodes 2 --master-addr a", "static", "a:29500", "a", 29500, "none"),
        ("--nnodes 2 --master-addr [::1] --rdzv-id x", "static", "[::1]:29500", "::1", 29500, "x"),
        ("--rdzv-endpoint a:1", "static", "a:1", "a", 1, "none"),
        ("--rdzv-backend c10d", "c10d", "", "localhost", 29400, "none"),
        ("--rdzv-backend c10d --rdzv-endpoint a", "c10d", "a", "a", 29400, "none"),
        ("--rdzv-backend c10d --rdzv-endpoint [::1]", "c10d", "[::1]", "::1", 29400, "none"),
        ("--rdzv-backend c10d --rdzv-endpoint a:7 --nnodes 2", "c10d", "a:7", "a", 7, "none"),
        ("--rdzv-backend tcp --rdzv-endpoint a", "tcp", "a", "a", 29400, "none"),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint a", "etcd-v2", "a", "a", 2379, "none"),
        ("--rdzv-backend mine --rdzv-endpoint a", "mine", "a", "a", None, "none"),
        ("--rdzv-backend mine --rdzv-endpoint x://a/b", "mine", "x://a/b", None, None, "none"),
        (
            "--rdzv-backend c10d --rdzv-conf store_type=file --rdzv-endpoint /tmp/a:b",
            *("c10d", "/tmp/a:b", None, None, "none"),
        ),
    ],
)
def test_where_hosts_meet(line, backend, endpoint, host, port, run_id):
    """The backend, the endpoint, its parts and the run id, from what was said of them."""
    said = options(f"{line} train.py")
    assert (said.backend, said.endpoint) == (backend, endpoint)
    assert (said.endpoint_host, said.endpoint_port) == (host, port)
    assert UUID.fullmatch(said.run_id) if run_id is None else said.run_id == run_id
    assert said.standalone == (run_id is None)


def test_replicas_of_an_app_meet_at_the_first_unless_told_otherwise():
    """A scheduler's variables say where that is; one host meets nobody."""
    there = {"PHALANX_RANK0_HOST": "pod-0.app", "PHALANX_RANK0_PORT": "1234"}
    said = options("--nnodes 1:2 x", **there)
    assert (said.backend, said.endpoint) == ("c10d", "pod-0.app:1234")
    assert options("--nnodes 2 x", PHALANX_RANK0_HOST="a").endpoint == "a:29500"
    assert options("--nnodes 2 --master-addr b x", **there).endpoint == "b:29500"
    assert options("--nnodes 2 x", PET_RDZV_ENDPOINT="c:1", **there).endpoint == "c:1"
    assert options("x", **there).endpoint == "localhost:0"


def test_an_empty_run_id_of_one_host_is_a_random_one():
    """As torch makes one: a number."""
    said = parse(["--rdzv-backend", "c10d", "--rdzv-id", "", "train.py"], {})
    assert said.run_id.isdigit()


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("", "script"),
        ("-m", "module"),
        ("--module", "module"),
        ("--no-python", "binary"),
        ("--no_python", "binary"),
        ("--run-path", "path"),
        ("--run-path --no-python -m", "path"),
    ],
)
def test_kinds_of_programs(flags, kind):
    """A script, a module, a program of its own, or a path; the path wins."""
    assert options(f"{flags} train").kind == kind


@pytest.mark.parametrize(
    "rest",
    [
        "--nnodes 5 --help",
        "-h -m -r 3 --n 1 --unknown",
        "x -- --tee 3",
        "--n",
        "--standalone=no a=b -",
    ],
)
def test_all_behind_the_script_is_the_scripts(rest):
    """Also what looks like flags of ours, or like too short a beginning of several."""
    said = options(f"--nproc-per-node 2 train.py {rest}")
    assert said.program == "train.py"
    assert said.arguments == tuple(rest.split())
    assert (said.max_hosts, said.workers, said.tee) == (1, 2, (0, 0))


@pytest.mark.parametrize(
    ("line", "workers"), [("3", 3), ("cpu", 6), ("gpu", 4), ("auto", 4), (" 2 ", 2)]
)
def test_numbers_of_workers(monkeypatch, line, workers):
    """By number, by processors, by GPUs."""
    monkeypatch.setattr(machine, "processors", lambda: 6)
    monkeypatch.setattr(machine, "gpus", lambda environ: 4)
    assert parse(["--nproc-per-node", line, "x"], {}).workers == workers


def test_without_gpus_auto_counts_processors_and_gpu_is_refused(monkeypatch):
    """As torchrun does it; the refusal says what hides them."""
    monkeypatch.setattr(machine, "processors", lambda: 6)
    monkeypatch.setattr(machine, "gpus", lambda environ: 0)
    assert options("--nproc-per-node auto x").workers == 6
    told = refusal("--nproc-per-node gpu x", CUDA_VISIBLE_DEVICES="")
    assert told == (
        "--nproc-per-node gpu: no NVIDIA GPU is visible on this machine "
        "(CUDA_VISIBLE_DEVICES=''). Give a number, or cpu."
    )


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("0", (0,) * 13),
        ("3", (3,) * 13),
        ("0:1,12:3", (1, *(0,) * 11, 3)),
        ("1:2,1:1", (0, 1, *(0,) * 11)),
        ("99:3", (0,) * 13),
    ],
)
def test_streams_by_local_rank(text, streams):
    """One number for all, or a map, with ranks of any length."""
    assert options(f"--nproc-per-node 13 -r {text} x").redirects == streams
    assert options(f"--nproc-per-node 13 -t{text} x").tee == streams


def test_other_values():
    """Each into its field."""
    said = options(
        "--nnodes 2:4 --node-rank 3 --rdzv-conf join_timeout=5,a=b=c --role trainer "
        "--max-restarts 3 --monitor-interval 5 --start-method fork --event-log-handler x "
        "--log-dir logs --local-ranks-filter 0,2 --ranks-filter 0,8-11 "
        "--duplicate-stdout-filters a,,b,c --duplicate-stderr-filters d --local-addr here "
        "--logs-specs mine --numa-binding core-complex --signals-to-handle SIGUSR1,SIGTERM "
        "--shutdown-timeout 7 --virtual-local-rank --nproc-per-node 2 x"
    )
    assert (said.min_hosts, said.max_hosts, said.node_rank, said.workers) == (2, 4, 3, 2)
    assert said.rdzv_conf == {"join_timeout": "5", "a": "b=c"}
    assert (said.role, said.max_restarts, said.monitor_interval) == ("trainer", 3, 5.0)
    assert (said.start_method, said.event_log_handler, said.log_dir) == ("zygote", "x", "logs")
    assert said.local_ranks_filter == {0, 2}
    assert said.ranks_filter == {0, 8, 9, 10, 11}
    assert said.duplicate_stdout_filters == ("a,b", "c")
    assert said.duplicate_stderr_filters == ("d",)
    assert (said.local_addr, said.logs_specs, said.numa_binding) == ("here", "mine", "core-complex")
    assert said.signals_to_handle == (signal.SIGUSR1, signal.SIGTERM)
    assert (said.shutdown_timeout, said.virtual_local_rank) == (7, True)


@pytest.mark.parametrize("text", ["'a=1,b=c'", '"a=1,b=c"', "' a=1,b=c '", "a=1,b=c"])
def test_quotes_around_the_rendezvous_settings_are_taken_off(text):
    """They come from shells and YAML that left them there, as torch takes them off."""
    assert parse(["--rdzv-conf", text, "x"], {}).rdzv_conf == {"a": "1", "b": "c"}


def test_threads_are_limited_where_several_workers_share_a_host():
    """Unless the user has said how many."""
    said = options("--nproc-per-node 2 x")
    assert said.omp_num_threads == "1"
    assert said.notes == ("OMP_NUM_THREADS is not set: using 1 for each worker",)
    assert options("--nproc-per-node 2 x", OMP_NUM_THREADS="4").omp_num_threads is None
    assert options("--nproc-per-node 2 x", OMP_NUM_THREADS="4").notes == ()


def test_variables_that_are_not_of_flags():
    """The interpreter, the prefix of lines, the time to the kill."""
    said = options(
        "x",
        PYTHON_EXEC="/opt/python",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${rank}] ",
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="9",
    )
    assert said.python == "/opt/python"
    assert said.log_line_prefix_template == "[${rank}] "
    assert said.shutdown_timeout == 9
    assert (
        options("--shutdown-timeout 1 x", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="9").shutdown_timeout == 1
    )


def test_the_command_line_wins_over_variables():
    """And a variable that it overrules is not even looked at."""
    said = options("--nnodes 2 --standalone --nnodes 1 x", PET_NNODES="3", PET_STANDALONE="yes")
    assert said.max_hosts == 1
    assert options("x", PET_NNODES="3").max_hosts == 3
    assert options("x", PET_MODULE="1").kind == "module"
    assert options("x", PET_MODULE="0").kind == "script"
    assert options("x", PET_NUMA_BINDING="node", PET_LOGS_SPECS="y").numa_binding is None


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "--standalone --rdzv-id 5 --node-rank 1 x",
            "ignored with --standalone: --rdzv-id 5, --node-rank 1",
        ),
        (
            "--node-rank 0 --master-addr b x",
            "--nnodes is 1, so this host runs alone; ignored: --node-rank 0, --master-addr b",
        ),
        (
            "--rdzv-backend c10d --rdzv-endpoint a --node-rank 1 x",
            "ignored with --rdzv-backend c10d: --node-rank 1",
        ),
        (
            "--rdzv-endpoint a:1 --master-addr b x",
            "ignored with --rdzv-backend static: --master-addr b",
        ),
        (
            "--rdzv-backend c10d --nnodes 2 x",
            "no --rdzv-endpoint: using localhost, which other hosts cannot reach",
        ),
    ],
)
def test_what_is_not_used_is_noted(line, note):
    """It is allowed, as torchrun allows it, but said."""
    assert options(line).notes == (note,)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--nnodes 0:1 x", "--nnodes 0:1: the minimum must be at least 1. Try --nnodes 1."),
        (
            "--nnodes 3:2 x",
            "--nnodes 3:2: the maximum must be at least the minimum. Try --nnodes 2:3.",
        ),
        ("--nnodes 1:2:3 x", "must be a number of hosts or MIN:MAX"),
        ("--nnodes two x", "--nnodes two: must be a number"),
        ("--nproc-per-node 0 x", "at least 1 worker"),
        ("--nproc-per-node npu x", "must be a number, auto, cpu or gpu."),
        ("--nproc-per-node xpu x", "Give a number."),
        ("--rdzv-endpoint foo x", 'rendezvous endpoint "foo" has no port. Write foo:29500.'),
        ("--rdzv-backend c10d --rdzv-endpoint a:b x", "invalid port 'b'"),
        ("--rdzv-backend c10d --rdzv-endpoint a:65536 x", "invalid port '65536'"),
        ("--rdzv-backend etcd --rdzv-endpoint http://a:1 x", "invalid host 'http://a'"),
        ("--rdzv-backend= x", "missing name"),
        (
            "--rdzv-backend c10d --rdzv-endpoint a:0 --nnodes 2 x",
            "a:0: with port 0, other hosts cannot find",
        ),
        ("--rdzv-backend c10d --rdzv-id= --nnodes 2 x", "--rdzv-id is empty"),
        ("--standalone --nnodes 2 x", "--standalone cannot be used with --nnodes 2"),
        ("--rdzv-conf a x", "--rdzv-conf a: 'a': expected KEY=VALUE."),
        ("--rdzv-conf a=1, x", "'': expected KEY=VALUE."),
        ("--rdzv-conf a= x", "'a=': expected KEY=VALUE."),
        ("--nnodes 2 --node-rank 2 x", "--node-rank 2: must be 0 to 1 with 2 hosts."),
        ("--node-rank 1 x", "--node-rank 1: must be 0 with one host."),
        ("--nnodes 2 --rdzv-conf rank=2 x", "--rdzv-conf rank=2: must be 0 to 1 with 2 hosts."),
        ("--nnodes 2 --rdzv-conf rank=a x", "--rdzv-conf rank=a: must be a whole number."),
        (
            "--nnodes 2 --node-rank 0 --rdzv-conf rank=1 x",
            "--node-rank 0 and --rdzv-conf rank=1 differ. Remove one of them.",
        ),
        ("--master-port 70000 x", "--master-port 70000: must be a port between 0 and 65535."),
        ("--max-restarts -1 x", "--max-restarts -1: must be 0 or more."),
        ("--max-restarts x", "--max-restarts: 'x' is not a whole number."),
        ("--monitor-interval nan x", "--monitor-interval nan: must be a number of seconds"),
        ("--monitor-interval a x", "--monitor-interval: 'a' is not a number."),
        ("--shutdown-timeout -1 x", "--shutdown-timeout -1: must be 0 or more."),
        (
            "--start-method thread x",
            "--start-method: 'thread': choose one of spawn, fork, forkserver.",
        ),
        ("--numa-binding all x", "--numa-binding: 'all': choose one of node, socket"),
        ("--signals-to-handle SIGTERM,SIGFOO x", "unknown signal 'SIGFOO'"),
        ("--signals-to-handle SIGKILL x", "SIGKILL cannot be handled"),
        ("-r 4 x", "--redirects 4: must be 0 to 3"),
        ("-t 0:4 x", "--tee 0:4: must be 0 to 3"),
        ("--local-ranks-filter a x", "--local-ranks-filter a: must be a list of ranks"),
        ("--ranks-filter 3-1 x", "--ranks-filter 3-1: must be a list of ranks"),
        ("--no-python -m x", "--no-python cannot be used with --module."),
        ("--standalone=1 x", "--standalone: takes no value."),
        ("--nproc-per-node", "--nproc-per-node: missing value."),
        ("", "missing script"),
        ("--nproc-per-node 2", "missing script"),
        ("--nprocs=2", "unknown flag --nprocs. Did you mean --nproc-per-node?"),
        ("--nprocs 2 x", "unknown flag --nprocs. Did you mean --nproc-per-node?"),
        ("-nproc_per_node 2 x", "unknown flag -nproc_per_node. Did you mean --nproc-per-node?"),
        ("--nodes 2 x", "Did you mean --nnodes?"),
        ("--quack x", "unknown flag --quack. See: phalanx torchrun --help."),
        ("--n 2 x", "ambiguous flag --n: could be --nnodes, --no-python, --node-rank,"),
        ("--r=2 x", "ambiguous flag --r: could be "),
    ],
)
def test_mistakes_are_one_sentence(line, told):
    """What was seen, and what to do."""
    assert told in refusal(line)
    assert "\n" not in refusal(line)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PET_NNODES": "0"}, "PET_NNODES=0: the minimum"),
        ({"PET_STANDALONE": "yes"}, "PET_STANDALONE: 'yes': must be 1 or 0."),
        ({"PET_MAX_RESTARTS": ""}, "PET_MAX_RESTARTS: '' is not a whole number."),
        ({"PET_START_METHOD": "x"}, "PET_START_METHOD: 'x': choose one of spawn"),
        (
            {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-3"},
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-3: must be a number",
        ),
    ],
)
def test_mistakes_in_variables_name_them(environ, told):
    """Who has not typed it must know where to look."""
    assert refusal("x", **environ).startswith(told)


def test_help_names_every_flag_once(capsys):
    """In some 60 lines, none wider than 100."""
    with pytest.raises(SystemExit) as caught:
        parse(["--nproc-per-node", "2", "--help"], {"PET_STANDALONE": "broken"})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^  (?:-\w, )?(--\S+)", text, re.MULTILINE)
    taken = [f"--{flag.name}" for flag in flags.FLAGS.values()]
    assert sorted(shown) == sorted(taken)
    assert "xpu" not in text
    lines = text.splitlines()
    assert len(lines) < 66
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("line", "environ", "method"),
    [
        ("x", {}, "zygote"),
        ("--start-method spawn x", {}, "spawn"),
        ("--start-method fork x", {}, "zygote"),
        ("--start-method forkserver x", {}, "zygote"),
        ("x", {"PET_START_METHOD": "spawn"}, "spawn"),
        ("--start-method fork x", {"PET_START_METHOD": "spawn"}, "zygote"),
    ],
)
def test_workers_are_spawned_where_that_is_asked_for(line, environ, method):
    """Otherwise they are forked from a process that has loaded their packages."""
    assert options(line, **environ).start_method == method


# ── beside torch ──────────────────────────────────────────────────────────────


@pytest.fixture
def torchs(monkeypatch):
    """torch's own launcher, in an environment of nothing that it reads."""
    run = pytest.importorskip("torch.distributed.run")
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return run


def test_every_flag_of_torch_is_ours_with_the_same_default(torchs):
    """In all its spellings; what reads a variable there does so here."""
    from torch.distributed.argparse_util import check_env, env

    ours = given_flags.make_parser()._option_string_actions
    seen = set()
    for action in torchs.get_args_parser()._actions:
        if action.dest in ("help", "training_script", "training_script_args"):
            assert all(name in ours for name in action.option_strings)
            continue
        flag = flags.FLAGS[action.dest]
        seen.add(action.dest)
        assert set(flag.option_strings) == set(action.option_strings)
        assert {ours[name].dest for name in action.option_strings} == {action.dest}
        assert flag.default == action.default
        assert (flag.metavar == "") == (action.nargs == 0)
        assert flag.by_environment == isinstance(action, env | check_env)
        assert all(flag.read(choice) == choice for choice in action.choices or ())
    assert set(flags.FLAGS) - seen == OURS.keys()


OURS = {"ranks_filter": "", "heartbeat_timeout": None, "host_checks": [], "host_failures": 0}
"""The flags that torch does not have."""

LINES = [
    "a.py",
    "a.py -- b",
    "-- a.py b",
    "a.py x -- --nnodes 3",
    "a.py --standalone --help",
    "--nnodes=2 --nproc_per_node=8 a.py --lr 1",
    "--nnodes 1:4 --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint h:1 a.py",
    "--nnodes 1 --nnodes 2 a.py",
    "--standalone --max-restarts 3 a.py",
    "--stand --max-r 3 a.py",
    "--rdzv-i 7 --rdzv_b c10d a.py",
    "-m pkg.mod --x",
    "-mr 3 pkg.mod",
    "-r3 -t 0:1,1:2 a.py",
    "-r=3 a.py",
    "--redirects 1 --tee=2 --log_dir d a.py",
    "--no-python ./run.sh -r 3",
    "--run-path /a.py",
    "--duplicate-stdout-filters a,b,,c,,,d a.py",
    "--duplicate_stderr_filters= a.py",
    "--monitor-interval 1e1 --shutdown-timeout 5 a.py",
    "--node-rank 1 --master-addr h --master-port 1 --nnodes 2 a.py",
    "--node_rank=-1 --master_port -2 a.py",
    "--numa-binding node --logs_specs x --virtual_local_rank a.py",
    "--signals-to-handle SIGUSR1 --event-log-handler e --role r --start-method fork a.py",
    "--local-ranks-filter 0,1 --local-addr h --rdzv-conf a=1,b=2 - c",
]
ENVIRONMENTS = [
    {},
    {"PET_NNODES": "1:3", "PET_NPROC_PER_NODE": "4", "PET_RDZV_ID": "j", "PET_NODE_RANK": "2"},
    {
        "PET_STANDALONE": "1",
        "PET_MODULE": "0",
        "PET_VIRTUAL_LOCAL_RANK": "2",
        "PET_NO_PYTHON": "-1",
    },
    {"PET_NUMA_BINDING": "node", "PET_LOGS_SPECS": "y", "PET_TEE": "3", "PET_R": "3", "PET_T": "3"},
    {"PET_DUPLICATE_STDOUT_FILTERS": "", "PET_DUPLICATE_STDERR_FILTERS": "a,,b", "PET_LOG_DIR": ""},
    {"PET_MAX_RESTARTS": " 2 ", "PET_MONITOR_INTERVAL": "3", "PET_MASTER_PORT": "9"},
    {"PET_TRAINING_SCRIPT": "z", "PET_SHUTDOWN_TIMEOUT": "4", "PET_SIGNALS_TO_HANDLE": "SIGHUP"},
]


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=lambda e: ",".join(e) or "nothing")
@pytest.mark.parametrize("line", LINES)
def test_what_is_read_is_what_torch_reads(torchs, monkeypatch, line, environ):
    """Value by value, from the command line and the variables."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    theirs = vars(torchs.parse_args(line.split()))
    ours = given_flags.read(line.split(), environ)
    assert ours.script == theirs.pop("training_script")
    assert list(ours.arguments) == theirs.pop("training_script_args")
    assert {**ours.values} == {**theirs, **OURS}


@pytest.mark.parametrize(
    "line",
    [
        "a.py",
        "--standalone a.py",
        "--standalone --rdzv-backend etcd --rdzv-endpoint h:1 --rdzv-id 7 a.py",
        "--nnodes 2 a.py",
        "--nnodes 1:2 --master-addr h a.py",
        "--nnodes 2 --node-rank 1 --master-addr h --master-port 5 --rdzv-id j a.py",
        "--master-port 5 a.py",
        "--rdzv-endpoint h:7 --master-port 5 a.py",
        "--rdzv-backend c10d a.py",
        "--rdzv-backend c10d --rdzv-endpoint h --rdzv-conf a=1,b=2 -m a",
        "--rdzv-backend c10d --rdzv-endpoint [::1]:8 --nproc-per-node cpu --no-python a",
        "--rdzv-backend etcd-v2 --rdzv-endpoint h --local-ranks-filter 0,1 -t 0:1,1:3 a.py",
        "--nproc-per-node 2 -r 3 --shutdown-timeout 3 --max-restarts 2 a.py b",
    ],
)
def test_what_it_means_is_what_it_means_to_torch(torchs, monkeypatch, line):
    """torch's configuration of the launch, and its command, from the same command line."""
    from torch.distributed.elastic.multiprocessing import to_map
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    kept = []

    def launch(config, entrypoint):
        return lambda *arguments: kept.extend((config, entrypoint, arguments))

    monkeypatch.setattr(torchs, "elastic_launch", launch)
    torchs.run(torchs.parse_args(["--log-dir", os.devnull, *line.split()]))
    config, entrypoint, arguments = kept
    said = parse(["--log-dir", os.devnull, *line.split()], os.environ)
    assert (said.backend, said.endpoint) == (config.rdzv_backend, config.rdzv_endpoint)
    assert said.standalone == bool(UUID.fullmatch(config.run_id))
    assert said.standalone or said.run_id == config.run_id
    assert (said.min_hosts, said.max_hosts) == (config.min_nodes, config.max_nodes)
    assert said.workers == config.nproc_per_node
    added = {"timeout": 900} | ({"rank": said.node_rank} if said.backend == "static" else {})
    assert said.rdzv_conf | added == config.rdzv_configs
    port = {"c10d": 29400, "etcd-v2": 2379}.get(said.backend, -1)
    place = parse_rendezvous_endpoint(config.rdzv_endpoint, port)
    assert (said.endpoint_host, said.endpoint_port) == place
    assert said.shutdown_timeout == config.shutdown_timeout
    assert said.max_restarts == config.max_restarts
    assert dict(enumerate(said.tee)) == to_map(config.logs_specs._tee, said.workers)
    assert dict(enumerate(said.redirects)) == to_map(config.logs_specs._redirects, said.workers)
    assert said.local_ranks_filter == config.logs_specs._local_ranks_filter
    before = {"script": ["-u"], "module": ["-u", "-m"], "binary": []}[said.kind]
    program = [] if said.kind == "binary" else [said.program]
    assert entrypoint == (said.program if said.kind == "binary" else said.python)
    assert [*before, *program, *said.arguments] == list(arguments)

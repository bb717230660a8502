"""The first of our code on another host: from a bare Python to an agent.

Its text travels down the channel and is run by whatever Python is there, so it stands alone, and
any Python from 3.6 on can read it. It makes sure that this Python will do, that the agent's own
code is there (a directory in the user's cache, named by a digest of what is in it, checked before
use), and sources `env_file`. Then this process becomes the agent.

The conversation: a line of JSON that says what is wanted, and a line of JSON for each answer.
`want` is answered with the code, as an archive; after `ready` come frames.
"""

import importlib
import importlib.util
import json
import os
import select
import stat
import sys
import tempfile
import time
from typing import IO, Any, Iterator  # noqa: UP035 for older Pythons too

READ, WRITE = 3, 4
"""The descriptors of the channel."""

NO_PYTHON = 96
"""The exit code when there is no Python to run this."""
NO_BIN_PYTHON = 95
"""The same, where a directory was named that has no `bin/python`."""
SOURCE_FAILED = 97
"""The exit code of the shell that sources `env_file`, when that fails."""

_UNUSED = 30 * 86400
"""Seconds after which code that nobody has used is removed."""

# Arguments: the file, its name in messages, the command to become. Within a function, so that the
# file may change its arguments. The traps see an `exit` in the file, and tell a command that failed
# from a last line such as `[ -n "$X" ] && export Y=1`.
SOURCE = f"""
phalanx_source() {{ source "$1"; }}
trap 'echo "env_file $2: called exit $?" >&2; exit {SOURCE_FAILED}' EXIT
set -E; trap '[ "${{FUNCNAME[0]-phalanx_source}}" = phalanx_source ] || phalanx_failed=yes' ERR
phalanx_source "$1" >&2 </dev/null
phalanx_status=$?
trap - EXIT ERR; set +eE
if [ "$phalanx_status" -gt 1 ] || [ "$phalanx_status${{phalanx_failed-}}" = 1yes ]; then
    echo "env_file $2: the last command exited with status $phalanx_status" >&2
    exit {SOURCE_FAILED}
fi
unset -f phalanx_source; unset phalanx_status phalanx_failed
shift 2; exec "$@"
"""

_SHOW = (
    "import os, sys; pairs = [b'%s=%s' % pair for pair in os.environb.items()]; "
    "sys.stdout.buffer.write(bytes(1).join(pairs))"
)
"""Prints the environment."""


class BootstrapRefused(Exception):
    """Why this host cannot be used."""


def bootstrap(incoming: "IO[bytes]") -> None:
    """Have all that is needed in place, and become the agent. Does not return."""
    wanted = json.loads(incoming.readline().decode())
    try:
        _check_python(wanted["python"])
        root = _have_code(wanted["code"], incoming)
        changed = _source(wanted["env_file"])
    except (BootstrapRefused, OSError) as error:
        _say(state="refused", message=str(error))
        os._exit(0)
    _load(root)
    hosts = importlib.import_module("phalanx._system.machine")
    gpus = hosts.gpus()
    if not gpus and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    pid = os.getpid()
    start = importlib.import_module("phalanx._system.processes").start_time(pid)
    facts = {"processors": hosts.processors(), "gpus": gpus, "pid": pid, "start": start}
    _say(state="ready", changed=changed, python=sys.executable, **facts)
    sys.argv = ["phalanx", str(READ), str(WRITE)]
    importlib.import_module("phalanx._agent.process").main()


def sweep(incoming: "IO[bytes]") -> None:
    """End an agent and all that it may have left, and remove its spool; says what came of it."""
    wanted = json.loads(incoming.readline().decode())
    root = _find_code(wanted["code"])
    if root is None:
        _say(state="refused", message="the agent's code is missing")
        return
    _load(root)
    leftovers = importlib.import_module("phalanx._worker.leftovers")
    gone = leftovers.end_agent(wanted["pid"], wanted["start"], wanted["spool"])
    if wanted["tree"]:
        tidy(wanted["tree"])
    _say(state="done" if gone else "left")


RECONNECT = "reconnect"
"""The socket in an agent's spool at which a launcher that has lost its stream comes back."""


def attach(incoming: "IO[bytes]") -> None:
    """Lead a launcher that comes back to its agent, and stay while the agent uses this stream.

    What the two prove to each other only passes through here.
    """
    import signal
    import socket

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent is told as well, and has last words
    wanted = json.loads(incoming.readline().decode())
    connection = socket.socket(socket.AF_UNIX)
    try:
        # By descriptor: the path of a socket may have only 107 bytes.
        directory = os.open(wanted.pop("spool"), os.O_RDONLY | os.O_DIRECTORY)
        connection.connect(f"/proc/self/fd/{directory}/{RECONNECT}")
    except OSError as error:
        _say(state="gone", message=error.strerror)
        return
    answers = connection.makefile("rb")
    connection.sendall(json.dumps(wanted).encode() + b"\n")
    for question in (True, False):
        answer = answers.readline()
        if not answer:
            return
        os.write(WRITE, answer)
        if json.loads(answer.decode()).get("state") == "refused":
            return
        if question:
            connection.sendall(incoming.readline())
    # From here on nothing is read or written here.
    socket.send_fds(connection, [b"\0"], [READ, WRITE, 2])
    answers.read()


BUILT = ".phalanx-built"
"""A file in a tree that is newer than all that was sent, and older than what workers write."""


def tidy(tree: str) -> "tuple[int, int]":
    """Remove from a tree what was sent; gives how many files and bytes workers have written.

    By the time of change, which nobody can set: it is not what a file's own time says.
    """
    import shutil

    try:
        built = os.lstat(os.path.join(tree, BUILT)).st_ctime_ns
    except OSError:
        shutil.rmtree(tree, ignore_errors=True)  # it was never complete: no worker has seen it
        return 0, 0
    count = size = 0
    for parent, directories, files in os.walk(tree, topdown=False):
        if os.path.basename(parent) == "__pycache__":
            shutil.rmtree(parent, ignore_errors=True)
            continue
        linked = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        for name in files + linked:
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
                if status.st_ctime_ns <= built:
                    os.unlink(path)
                else:
                    count, size = count + 1, size + status.st_size
            except OSError:
                continue
        try:
            os.rmdir(parent)
        except OSError:
            continue
    return count, size


def _say(**message: "Any") -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(WRITE, data) :]


def _check_python(version: "list[int]") -> None:
    """Refuse another minor version than the launcher's: code cannot be carried between them."""
    if list(sys.version_info[:2]) != version:
        here = ".".join(map(str, sys.version_info[:3]))
        ours = ".".join(map(str, version))
        raise BootstrapRefused(
            f"its Python is {here} ({sys.executable}), the launcher's is {ours}. Set python=... "
            "to another interpreter or virtual environment of that host."
        )


# ── the agent's code ──────────────────────────────────────────────────────────


def caches() -> "Iterator[str]":
    """Where things may be kept on this host, in order of preference."""
    home = os.path.expanduser("~")
    for base in (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(home, ".cache")):
        if os.path.isabs(base):
            yield os.path.join(base, "phalanx")
            break
    yield os.path.join(tempfile.gettempdir(), f"phalanx-cache-{os.geteuid()}")


def _have_code(digest: str, incoming: "IO[bytes]") -> str:
    """The directory with the code, which is asked for where it is missing or damaged."""
    root = _find_code(digest)
    if root is not None:
        return root
    _say(state="want")
    size = int(incoming.readline())
    data = incoming.read(size)
    if len(data) < size:
        raise BootstrapRefused("the agent's code arrived incomplete")
    problems = []
    for cache in caches():
        try:
            return _keep_code(cache, digest, data)
        except OSError as error:
            problems.append(f"{cache}: {error.strerror or error}")
    raise BootstrapRefused(f"cannot store the agent's code there ({'; '.join(problems)})")


def _find_code(digest: str) -> "str | None":
    for cache in caches():
        root = os.path.join(cache, "code", digest)
        if is_own(cache) and digest_of(root) == digest:
            try:
                os.utime(root)  # it is in use
            except OSError:
                pass  # nobody can remove it from there either
            return root
    return None


def _keep_code(cache: str, digest: str, data: bytes) -> str:
    """Unpack it beside its directory and move it there at once: others may be doing the same."""
    import io
    import shutil
    import zipfile

    directory = make_directory(cache, "code")
    root = os.path.join(directory, digest)
    new = tempfile.mkdtemp(prefix=".new-", dir=directory)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(os.path.join(new, "code"))
        for _ in range(10):
            if digest_of(root) == digest:
                break  # ours, or that of another launch that was faster
            if os.path.exists(root):  # damaged: out of the way, under a name of its own
                os.rename(root, tempfile.mkdtemp(prefix=".old-", dir=directory))
            try:
                os.rename(os.path.join(new, "code"), root)
            except OSError:
                continue
        if digest_of(root) != digest:
            raise OSError(5, "what was written is not what was sent")
    finally:
        shutil.rmtree(new, ignore_errors=True)
    remove_unused(directory, _UNUSED)
    return root


def make_directory(cache: str, name: str) -> str:
    """A directory in a cache, that nobody else can write to. Raises `OSError`."""
    # One by one: the mode is that of the last, and whoever may write above may do anything below.
    directory = os.path.join(cache, name)
    os.makedirs(cache, mode=0o700, exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if not is_own(cache) or not is_own(directory):
        raise PermissionError(1, "writable by other users")
    return directory


def digest_of(root: str) -> "str | None":
    """Names what is in a directory: its files' paths and contents, but for compiled ones."""
    import hashlib

    names = []
    for parent, directories, files in os.walk(root):
        directories[:] = [d for d in directories if d != "__pycache__"]
        names += [os.path.relpath(os.path.join(parent, name), root) for name in files]
    digest = hashlib.sha256()
    try:
        for name in sorted(names):
            with open(os.path.join(root, name), "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
            digest.update(f"{name} {content}\n".encode())
    except OSError:
        return None
    return digest.hexdigest()


def is_own(directory: str) -> bool:
    """It is this user's, and nobody else can write there."""
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return own and stat.S_ISDIR(status.st_mode)


def remove_unused(directory: str, seconds: float) -> None:
    """Remove from a directory what nobody has used for so long, and what was left half done."""
    import shutil

    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            age = time.time() - os.stat(path).st_mtime
        except OSError:
            continue
        if age > (86400 if name.startswith(".") else seconds):
            shutil.rmtree(path, ignore_errors=True)


def _load(root: str) -> None:
    """Load the very packages that were sent, whatever else is installed here.

    What the launcher's cloudpickle has written, another version may not be able to read.
    """
    sys.path[:] = [root] + [entry for entry in sys.path if entry]
    package = os.path.join(root, "phalanx")
    spec = importlib.util.spec_from_file_location(
        "phalanx", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None and spec.loader is not None  # noqa: PT018 it is the file named
    module = sys.modules["phalanx"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


# ── environment ───────────────────────────────────────────────────────────────


def _source(env_file: "dict[str, str] | None") -> "list[str]":
    """Source a bash file and take its variables on; gives the names of those it has changed."""
    import subprocess

    if env_file is None:
        return []
    path, text = env_file["path"], env_file["text"].encode("utf-8", "surrogateescape")
    # In memory: it may hold secrets, and nothing is to be left of it wherever this is killed.
    number = os.memfd_create("phalanx-env-file")
    copy = f"/dev/fd/{number}"
    # Into files: what the file has started in the background may go on writing.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            with open(number, "wb", closefd=False) as file:
                file.write(text)
            # Where the very file is there as well, what it looks for beside itself is found.
            chosen = path if _is_same(path, text) else copy
            bash = subprocess.Popen(
                ["bash", "-c", SOURCE, "bash", chosen, path, sys.executable, "-c", _SHOW],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                pass_fds=(number,),
            )
            _wait_for(bash)
        finally:
            os.close(number)
        output.seek(0)
        errors.seek(0)
        said = errors.read().replace(os.fsencode(copy), os.fsencode(path))
        shown = output.read()
    os.write(2, said)
    if bash.returncode:
        reason = said.decode("utf-8", "replace").strip()
        raise BootstrapRefused(f"sourcing env_file failed:\n{reason}")
    before = dict(os.environb)
    after = dict(item.split(b"=", 1) for item in shown.split(b"\0"))
    for name in set(before) - set(after):
        del os.environb[name]
    os.environb.update(after)
    changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    return sorted(map(os.fsdecode, changed))


def _wait_for(process: "Any") -> None:
    """Until it has ended. If the launcher goes first, end it and this process."""
    while process.poll() is None:
        # Nothing is sent to us meanwhile: what can be read is the end.
        if select.select([READ], [], [], 0.02)[0]:
            os.killpg(process.pid, 9)
            process.wait()
            raise BootstrapRefused("the launcher is gone")


def _is_same(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == text
    except OSError:
        return False

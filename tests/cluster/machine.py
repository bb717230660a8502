"""Machines within this one: processes, mounts and a network of their own. Needs root.

All that one has is gone when its first process is killed: daemons, containers, bridges, mounts. They
live in directories under /tmp that several processes may share.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.conftest import is_alive, wait_until

TOOLS = ("docker-init", "ip", "unshare", "nsenter")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phalanx-tests"

_CGROUPS = Path("/sys/fs/cgroup")


def why_not(what, tools):
    """The reason why this cannot be had here, or None."""
    if os.geteuid() != 0:
        return f"{what} of our own needs root"
    missing = [tool for tool in tools if not shutil.which(tool, path=PATH)]
    if missing:
        return f"{', '.join(missing)} not installed; 'make test SYSTEM=1' does it"
    return None


class Machine:
    """One that may run already: `begin` starts it.

    Args:
        place: A directory for its files.
    """

    def __init__(self, place):
        self.place = place
        self.environ = {**os.environ, "PATH": PATH}

    @property
    def group(self):
        """The control group of its containers."""
        return "-".join(self.place.parts[2:])

    @property
    def pid(self):
        """Its first process, as seen from here; None if it does not run."""
        pid = read(self.place / "init.pid").strip()
        return int(pid) if pid and "docker-init" in read(f"/proc/{pid}/comm") else None

    def is_up(self):
        return self.pid is not None and is_alive(self.pid)

    def begin(self):
        """Have the namespaces, with a first process that buries the others."""
        self.place.mkdir(exist_ok=True)
        command = (
            *("unshare", "--mount", "--propagation=slave", "--net", "--pid", "--fork"),
            *("--mount-proc", "docker-init", "--", "sleep", "infinity"),
        )
        # Of nobody's children, as daemons are: tests look at what is left of their own.
        with open(self.place / "init.log", "wb") as log:
            subprocess.run(
                ["sh", "-c", 'setsid "$@" & echo $! > "$0"', self.place / "unshare.pid", *command],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

        def first():
            parent = read(self.place / "unshare.pid").strip()
            return read(f"/proc/{parent}/task/{parent}/children").split()

        pid = int(wait_until(first, 10, "no namespaces")[0])
        # Which is "unshare" still, before it has mounted what it must.
        named = lambda: "docker-init" in read(f"/proc/{pid}/comm")
        wait_until(named, 10, read(self.place / "init.log") or "no first process")
        (self.place / "init.pid").write_text(str(pid))
        # A mount of a network here would keep that network, though its owner lets go of it.
        mounts = [line.split() for line in read(f"/proc/{pid}/mounts").splitlines()]
        for held in [where for _, where, kind, *_ in mounts if kind == "nsfs"]:
            self.inside("umount", "-l", held, check=False)  # it may have gone by itself
        self.inside("ip", "link", "set", "lo", "up")

    def inside(self, *command, check=True, **kwargs):
        """Run a command there; gives what it printed."""
        return self._run(*self._enter(), *command, check=check, **kwargs)

    def start_inside(self, *command, **kwargs):
        """Start one there: a registry, a client of a published port."""
        return subprocess.Popen([*self._enter(), *map(str, command)], env=self.environ, **kwargs)

    def spawn(self, name, *command):
        """Start a daemon there, which writes to `name`.log and is the first process's child."""
        self._spawn(name, command)

    def spawn_before_others(self, name, *command):
        """The same for one that others wait for: it gets a processor also when all are busy."""
        self._spawn(name, ("nice", "-n", "-5", *command))

    def _spawn(self, name, command):
        with open(self.place / f"{name}.log", "ab") as log:
            subprocess.run(
                [*self._enter(), "sh", "-c", 'setsid "$@" &', "start", *map(str, command)],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def daemons(self, program, word):
        """The processes of a daemon, as seen from here: by its name, and a word of its command."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                named = os.path.basename(words[0]) == program.encode()
                if named and str(word).encode() in words and is_alive(entry):
                    found.append(int(entry))
        return found

    def end(self):
        """Kill it, and all that it has."""
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(pid), 30, f"{self.place}: the first process stays")
        groups = {*_CGROUPS.glob(f"*/{self.group}/**/"), *_CGROUPS.glob(f"{self.group}/**/")}
        for group in sorted(groups, reverse=True):
            # What was killed with its namespace may take a moment to go.
            wait_until(lambda: _removed(group), 10, f"{group} is still used")

    def _enter(self):
        return ("nsenter", f"--target={self.pid}", "--mount", "--net", "--pid")

    def _run(self, *command, check, **kwargs):
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            **kwargs,
        )
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout


class SharedPlace:
    """A directory of something that the first to have it starts, and the last to close it ends.

    Args:
        prefix: What the directory's name begins with. Those whose users were killed are ended.
        name: Those who give the same, in whatever process, have the same; None for one's own.
        end: Ends what lives in a directory that nobody uses.
    """

    def __init__(self, prefix, name, end):
        for old in Path("/tmp").glob(f"{prefix}*/"):
            with contextlib.suppress(OSError), open(old / "users") as users:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end(old, end)
        if name is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        else:
            self.path = Path("/tmp", prefix + name)
            self.path.mkdir(mode=0o755, exist_ok=True)
        self.path.chmod(0o755)
        self._how_to_end = end
        self._users = open(self.path / "users", "a")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self):
        """One at a time starts it, or ends it."""
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def close(self):
        """Let go of it; the last to do so ends it."""
        try:
            with self.alone():
                try:
                    fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return  # others have it
                _end(self.path, self._how_to_end)
        finally:
            self._users.close()


def _end(path, how):
    how(path)
    shutil.rmtree(path)
    Path(f"{path}.lock").unlink(missing_ok=True)


def _removed(group):
    with contextlib.suppress(OSError):
        os.rmdir(group)
    return not group.exists()


def read(path):
    """What a file has; nothing, if there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

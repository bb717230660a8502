"""Real hosts on this machine: each has its own address, name, process table and filesystem.

A host is a set of namespaces with a real sshd as its first process. Its root is an overlay of this
machine's, in which homes, /tmp, and this repository are hidden, and the interpreter is shown
read-only: nothing of ours is installed there, and nothing is shared. Needs root.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.conftest import is_alive, wait_until

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("sshd", "ssh", "ssh-keygen", "ip", "iptables", "tc", "nsenter", "unshare")

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

_SSHD = """\
HostKey /etc/ssh/own_key
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
MaxStartups 200
PidFile none
"""

# Runs as the first process of the host. What it mounts is seen by the host alone.
_INIT = r"""
set -e
name=$1 disk=$2 shared=$3 root=$disk/root
hostname "$name"; ip link set lo up
mount -t overlay overlay -o lowerdir=/,upperdir="$disk/up",workdir="$disk/work" "$root"
mount --rbind /dev "$root/dev"; mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t proc proc "$root/proc"; mount -t sysfs sysfs "$root/sys"
for place in $HIDDEN; do
    [ -d "$root$place" ] || continue
    mode=755; [ "$place" = /tmp ] && mode=1777
    mount -t tmpfs -o mode=$mode,size=2g hidden "$root$place"
done
for place in $SHOWN; do
    mkdir -p "$root$place"; mount --bind "$place" "$root$place"
    mount -o remount,bind,ro "$root$place"
done
if [ -n "$shared" ]; then mkdir -p "$root$shared"; mount --bind "$shared" "$root$shared"; fi
mkdir -p -m 700 "$root/root/.ssh"; mkdir -p "$root/run/sshd"
cp "$disk/key.pub" "$root/root/.ssh/authorized_keys"
echo "127.0.0.1 localhost" >"$root/etc/hosts"; : >"$root/etc/resolv.conf"
install -m 600 "$disk/host_key" "$root/etc/ssh/own_key"
cp "$disk/sshd_config" "$root/etc/ssh/own_config"
cd "$root"; mkdir -p .old; pivot_root . .old; umount -l /.old
exec chroot / "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -f /etc/ssh/own_config
"""


def why_not():
    """The reason why hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if missing:
        return f"{', '.join(missing)} not installed; 'make test SYSTEM=1' does it"
    made = _run("unshare", "--net", "--mount", "--pid", "--fork", "true", check=False)
    return f"namespaces are not permitted: {made.stderr}" if made.returncode else None


def _run(*command, check=True, **kwargs):
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, **kwargs
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done


_COUNT = itertools.count()


class Cluster:
    """Some hosts on one network, and the ssh configuration that knows them."""

    def __init__(self, count, shared=None, shown=()):
        """`shared` is a directory that they and this machine share, `shown` some that they see."""
        self.shown = [*_interpreter(), *shown]
        self.directory = Path(tempfile.mkdtemp(prefix="hosts-of-", dir="/tmp"))
        self.shared = shared
        tag = f"{os.getpid() % 100000}{next(_COUNT) % 256:02x}"
        self.bridge = f"pb{tag}"
        self.network = _free_network()
        self._key("key")
        self._key("host_key")
        _run("mount", "-t", "tmpfs", "-o", "size=8g,mode=755", "disks", self._disks())
        _run("ip", "link", "add", self.bridge, "type", "bridge", "forward_delay", "0")
        _run("ip", "addr", "add", f"{self.network}.254/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        self.hosts = [Host(self, i, tag) for i in range(1, count + 1)]
        self._write_ssh_config()
        for host in self.hosts:
            host.boot()

    def _disks(self):
        disks = self.directory / "disks"
        disks.mkdir(exist_ok=True)
        return disks

    def _key(self, name):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / name)

    def _write_ssh_config(self):
        key = (self.directory / "host_key.pub").read_text().strip()
        known, config = self.directory / "known_hosts", self.directory / "ssh_config"
        known.write_text("".join(f"{h.address} {key}\n" for h in self.hosts))
        entries = [f"Host {h.name}\n  HostName {h.address}\n" for h in self.hosts]
        config.write_text(
            "".join(entries) + f"Host *\n  User root\n  IdentityFile {self.directory / 'key'}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
            # What is proof against quantum computers takes most of a login's processor time.
            "  KexAlgorithms curve25519-sha256\n"
        )
        self.ssh_config = config

    def move(self, to):
        """Give this machine another address in their network."""
        _run("ip", "addr", "flush", "dev", self.bridge)
        _run("ip", "addr", "add", f"{self.network}.{to}/24", "dev", self.bridge)

    @property
    def names(self):
        return [host.name for host in self.hosts]

    def close(self):
        for host in self.hosts:
            host.remove()
        _run("ip", "link", "del", self.bridge, check=False)
        while _run("umount", self._disks(), check=False).returncode == 0:
            pass
        shutil.rmtree(self.directory)


class Host:
    """One of them. Its name is known to the ssh configuration alone."""

    def __init__(self, cluster, number, tag):
        self.cluster = cluster
        self.name = f"box{number}"
        self.address = f"{cluster.network}.{number}"
        self.space, self.link = f"pn{tag}x{number}", f"p{number}v{tag}"
        self.pid = None
        self._is_disturbed = False
        _run("ip", "netns", "add", self.space)
        _run(
            "ip",
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.space,
        )
        _run("ip", "link", "set", self.link, "master", cluster.bridge, "up")
        _run("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run("ip", "-n", self.space, "link", "set", "eth0", "up")

    def boot(self, sshd_config=""):
        """Start it with a fresh disk, and wait for its sshd."""
        directory = self.cluster.directory
        disk = directory / "disks" / f"{self.name}-{os.urandom(3).hex()}"
        for part in ("up", "work", "root"):
            (disk / part).mkdir(parents=True)
        for name in ("key.pub", "host_key"):
            shutil.copy(directory / name, disk / name)
        (disk / "sshd_config").write_text(sshd_config + _SSHD)
        (disk / "init").write_text(_INIT)
        environ = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HIDDEN": f"/root /home /tmp {REPOSITORY}",
            "SHOWN": " ".join(self.cluster.shown),
        }
        # What the tests are marked with must not be found on the hosts' processes.
        environ.pop("PHALANX_TESTS", None)
        environ.pop("XDG_STATE_HOME", None)
        log = open(directory / f"{self.name}.log", "wb")
        with log:
            starter = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", "unshare", "--uts", "--ipc", "--pid"]
                + ["--mount", "--fork", "--kill-child", "bash", disk / "init", self.name, disk]
                + [self.cluster.shared or ""],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
        self.starter = starter
        self.pid = int(wait_until(lambda: children.read_text().split())[0])
        wait_until(self._answers, message=f"{self.name} did not come up")

    def _answers(self):
        text = (self.cluster.directory / f"{self.name}.log").read_text()
        return "Server listening on 0.0.0.0" in text

    def enter(self, *command, check=True, **kwargs):
        """Run something there, without ssh."""
        nsenter = [
            "nsenter",
            "-t",
            str(self.pid),
            "-a",
            "--",
            "env",
            "-i",
            "HOME=/root",
            f"PATH={PATH}",
        ]
        done = _run(*nsenter, *command, check=check, **kwargs)
        return done.stdout

    def write(self, path, text, mode=0o644):
        """Put a file there."""
        self.enter(
            "sh",
            "-c",
            f"mkdir -p $(dirname {path}); cat >{path}; chmod {mode:o} {path}",
            input=text,
        )

    def processes(self):
        """The numbers and command lines of what runs there, but for sshd's own."""
        lines = []
        for number in filter(str.isdigit, os.listdir(self.root / "proc")):
            try:
                about = self.root / "proc" / number
                words = about.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                line = (
                    b" ".join(words).decode() or f"[{about.joinpath('comm').read_text().strip()}]"
                )
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            if not line.startswith(("sshd", "/usr/sbin/sshd")):
                lines.append(f"{number} {line}")
        return lines

    def pids(self, part):
        """The processes there, by their numbers there, whose command lines have this in them."""
        return [int(line.split()[0]) for line in self.processes() if part in line]

    def files(self):
        """What of ours is left on its disk outside of the cache."""
        return [path.name for path in self.root.glob("tmp/phalanx-*")]

    @property
    def root(self):
        """Its file system, seen from here."""
        return Path(f"/proc/{self.pid}/root")

    def kill(self):
        """End all its processes; its peers are told so."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.starter.wait()
            wait_until(lambda: not is_alive(self.pid))
            self.pid = None

    def cut(self):
        """Drop everything on its way to and from it, in silence."""
        self._is_disturbed = True
        _run("ip", "link", "set", self.link, "nomaster")

    def mend(self):
        """Undo `cut` and `slow_down`."""
        if not self._is_disturbed:
            return
        self._is_disturbed = False
        _run("ip", "link", "set", self.link, "master", self.cluster.bridge)
        _run("tc", "qdisc", "del", "dev", self.link, "root", check=False)

    def slow_down(self, rate):
        """Let only so much through."""
        self._is_disturbed = True
        shape = f"tc qdisc replace dev {self.link} root tbf rate {rate} burst 16kb latency 400ms"
        _run(*shape.split())

    def reboot(self, sshd_config=""):
        """Fresh, and connected again."""
        self.kill()
        self.mend()
        self.boot(sshd_config)

    def remove(self):
        self.kill()
        _run("ip", "netns", "del", self.space, check=False)
        _run("ip", "link", "del", self.link, check=False)


def _interpreter():
    """The directories that this interpreter, with its packages, consists of, but for system ones."""
    places = {sys.base_prefix, sys.prefix, sysconfig.get_path("purelib")}
    shown = [p for p in places if not p.startswith("/usr") or p.startswith("/usr/local")]
    return sorted(p for p in shown if not any(p != o and p.startswith(o + "/") for o in shown))


def _free_network():
    taken = _run("ip", "-o", "addr").stdout
    first = os.getpid() % 190  # others may be looking at the same moment
    for third in (*range(60 + first, 250), *range(60, 60 + first)):
        if f"10.77.{third}." not in taken:
            return f"10.77.{third}"
    raise RuntimeError("no free network")

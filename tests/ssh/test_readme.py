"""What README and docs/hosts.md say of several hosts, on real ones."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```py\n(.*?)```(?:\n+ *```text\n(.*?)```)?", re.S)


@pytest.fixture
def home(cluster, tmp_path):
    """A user whose ssh knows two hosts as gpu-1 and gpu-2."""
    config = cluster.ssh_config.read_text().replace("Host box1", "Host gpu-1")
    place = tmp_path / "home" / ".ssh"
    place.mkdir(parents=True)
    path = place / "config"
    path.write_text(config.replace("Host box2", "Host gpu-2"))
    return path


def run(path, config):
    code = path.read_text().replace("hostnames=", f"ssh_config_file={str(config)!r}, hostnames=")
    path.write_text(code)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)


def test_the_second_example_of_the_readme_runs_on_two_hosts(home, tmp_path):
    """The first one's function, from its own file."""
    text = (ROOT / "README.md").read_text()
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", text, re.S)[1])
    second, expected = BLOCK.search(text).groups()
    path = tmp_path / "two_hosts.py"
    path.write_text(second)
    done = run(path, home)
    shown = [line for line in done.stdout.splitlines() if "c10d" not in line]
    assert shown == expected.splitlines(), done.stderr


def test_the_page_on_hosts_leads_to_an_all_reduce(home, tmp_path):
    """As it is written there."""
    text = (ROOT / "docs" / "hosts.md").read_text()
    code, expected = next(m.groups() for m in BLOCK.finditer(text) if "all_reduce" in m[1])
    path = tmp_path / "reduce.py"
    path.write_text(textwrap.dedent(code))
    done = run(path, home)
    assert done.stdout.splitlines()[-1] == expected.strip(), done.stderr
    command = re.search(r"phalanx (hosts check gpu-1 gpu-2)", text)[1].split()
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *command, "--ssh-config-file", str(home)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

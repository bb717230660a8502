"""Commands on the pages of schedulers: each is one that can be submitted."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_CLUSTER = {
    "aws-batch.md": (),
    "docker.md": (),
    "kubernetes.md": ("-cfg", "namespace=team,server_version=1.29"),
    "ray.md": ("-cfg", "dashboard_address=http://head:8265"),
}
COMMANDS = [
    pytest.param(page, command, id=f"{page}-{number}")
    for page in WITHOUT_CLUSTER
    for block in [(ROOT / "docs" / page).read_text()]
    for number, command in enumerate(re.findall(r"^phalanx run ((?:.*\\\n)*.*)$", block, re.M))
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_the_page_is_understood(page, command, tmp_path):
    """As far as it can be without an engine or a cluster."""
    (tmp_path / "train.py").write_text("print(1)\n")
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    scheduler, rest = words[:2], [word for word in words[2:] if word != "--dryrun"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "phalanx", "run", *scheduler, "--dryrun"),
            *(*WITHOUT_CLUSTER[page], *rest),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "=== SCHEDULER REQUEST ===" in done.stdout

"""Frameworks, each trained on two workers by its example, to a loss that says that it was."""

import ast
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, directory):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "package", "most"),
    [
        ("accelerate_train.py", "accelerate", 0.1),
        ("hf_trainer.py", "transformers", 4.0),
        ("jax_train.py", "jax", 0.1),
        ("lightning_fabric.py", "lightning", 0.1),
        ("lightning_trainer.py", "lightning", 0.5),
        ("deepspeed_train.py", "deepspeed", 0.5),
        ("torchtune_train.py", "torchtune", 0.1),
    ],
)
def test_two_workers_train_together(name, package, most, tmp_path):
    """Each rank sees the other, and all have the same loss, which has become small."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    shown = run(name, tmp_path)
    assert "0 of 2" in shown
    losses = ast.literal_eval(shown[shown.rindex(": [") + 2 :].strip())
    assert len(losses) == 2
    assert losses[0] == losses[1] <= most


def test_a_sweep_goes_on_when_one_of_its_trainings_fails(tmp_path):
    """And finds the best of the others."""
    shown = run("sweep.py", tmp_path)
    assert "failed: 1" in shown
    assert "best rate: 0.1" in shown


NOTEBOOK = """
import phalanx

def train():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    print(accelerator.process_index, "of", accelerator.num_processes, flush=True)
    return accelerator.num_processes

if __name__ == "__main__":
    from accelerate import notebook_launcher

    print(list(phalanx.launch(train, workers_per_host=2)), flush=True)
    notebook_launcher(train, num_processes=2, use_port="PORT")
    print("both ended", flush=True)
"""


def test_notebook_launcher_works_after_a_launch(tmp_path):
    """In one program, whose workers it forks: ours leaves nothing there that they hang on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "cell.py").write_text(NOTEBOOK.replace("PORT", str(port)))
    shown = run(tmp_path / "cell.py", tmp_path)
    assert "[2, 2]" in shown
    theirs = shown.partition("Launching training on 2")[2]
    assert "both ended" in theirs
    assert theirs.count("of 2") == 2

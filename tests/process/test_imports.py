"""What is imported by whom: a command starts at once."""

import subprocess
import sys


def test_importing_phalanx_loads_neither_torch_nor_asyncio_nor_rich():
    """Nor anything else that is heavy."""
    code = (
        "import sys, phalanx; print([m for m in ('torch', 'asyncio', 'rich', 'tyro', 'cloudpickle',"
        " 'msgpack') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_reading_the_command_line_does_not_import_torch():
    """A launcher that starts at once."""
    code = (
        "import sys; from phalanx._elastic.command.torchrun_options import parse; "
        "parse(['--nproc-per-node', '2', 'x'], {}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_looking_for_plugins_does_not_load_importlib_metadata():
    """Nor does a submission load what only TorchX's schedulers, failures or stacks need."""
    code = (
        "import sys; from phalanx._runner import runner; runner.get_runner().__enter__(); "
        "from phalanx import _plugins; _plugins.of('phalanx.cli'); "
        "import phalanx._schedulers.supervised.local_cwd; "
        "print([m for m in ('importlib.metadata', 'secrets', 'phalanx._schedulers.torchx.adapter', "
        "'phalanx._core.stacks', 'phalanx._worker.outcome') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

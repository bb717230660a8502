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

"""What is imported by whom: a command starts at once."""

import gc
import subprocess
import sys

from phalanx._worker import zygote


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


def test_workers_collect_garbage_as_often_as_any_python(script):
    """Whatever is done while packages are loaded."""
    done = script("""
        import gc, phalanx, numpy
        if __name__ == "__main__":
            print(*phalanx.Launcher().run(lambda: (int(numpy.add(1, 1)), gc.get_threshold())))
    """)
    assert done.stdout.strip() == f"(2, {gc.get_threshold()})", done.stderr


def test_a_package_may_say_how_often_garbage_is_collected():
    """Once it is loaded that holds."""
    before = gc.get_threshold()
    try:
        with zygote._rare_collections():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


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

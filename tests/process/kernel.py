"""A real Jupyter kernel, spoken to as a notebook does."""

import os
import sys


class Kernel:
    """Runs cells; gives what they print."""

    def __init__(self, **environ):
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager()
        self._manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="tests",
            language="python",
        )
        self._environ = {**os.environ, **environ}

    def __enter__(self):
        self._manager.start_kernel(env=self._environ)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=False)
        self._manager.cleanup_resources()
        self._manager.context.destroy()

    @property
    def pid(self):
        return self._manager.provisioner.pid

    def interrupt(self):
        self._manager.interrupt_kernel()

    def start(self, code):
        """Run a cell without waiting; gives its id."""
        return self._client.execute(code)

    def finish(self, cell, timeout=60):
        """What a cell printed to stdout; raises if it raised."""
        shown, error = [], None
        while True:
            message = self._client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream" if content["name"] == "stdout":
                    shown.append(content["text"])
                case "error":
                    error = "\n".join(content["traceback"])
                case "status" if content["execution_state"] == "idle":
                    break
        if error is not None:
            raise CellFailed(error, "".join(shown))
        return "".join(shown)

    def run(self, code, timeout=60):
        """Run a cell to its end."""
        return self.finish(self.start(code), timeout)


class CellFailed(Exception):
    """A cell raised; its traceback as the notebook shows it."""

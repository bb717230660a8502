"""Apps onto schedulers: submit, follow, end; from any process.

with get_runner() as runner:
    handle = runner.run_component("utils.echo", ["--msg", "hi"], scheduler="local_cwd")
    status = runner.wait(handle)
"""

from phalanx._runner.runner import AppDryRunInfo, Runner, get_runner

__all__ = ["AppDryRunInfo", "Runner", "get_runner"]

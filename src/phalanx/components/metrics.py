"""Components that show how a training goes."""

from __future__ import annotations

from phalanx import specs
from phalanx.components._texts import program


def tensorboard(
    logdir: str,
    image: str = "",
    timeout: float = 3600.0,
    port: int = 6006,
    start_on_file: str = "",
    exit_on_file: str = "",
) -> specs.AppDef:
    """Run TensorBoard until a timeout, or until a file exists.

    Args:
        logdir: directory of the logs
        image: container image, if the scheduler supports images
        timeout: seconds to run
        port: port to serve on
        start_on_file: wait until this file exists before starting
        exit_on_file: exit when this file exists

    """
    server = ["python", "-m", "tensorboard.main", "--bind_all", "--port", str(port)]
    monitor = [*program("_monitor"), "--timeout", str(timeout)]
    monitor += ["--start_on_file", start_on_file, "--exit_on_file", exit_on_file]
    return specs.AppDef(
        name="tensorboard",
        roles=[
            specs.Role(
                name="tensorboard",
                image=image,
                entrypoint="python",
                args=[*monitor, "--", *server, "--logdir", logdir],
                port_map={"http": port},
            )
        ],
    )

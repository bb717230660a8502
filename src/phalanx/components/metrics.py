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
    """Serve TensorBoard, until a time has passed or a file appears.

    Args:
        logdir: where the logs are
        image: the image to run in, where the scheduler has images
        timeout: seconds until it ends
        port: the port it serves at
        start_on_file: do not start before this file is there
        exit_on_file: end when this file is there

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

"""TorchElastic's way to run an agent in one call: `elastic_launch(LaunchConfig(…), fn)(*args)`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.host_bounds import check_bounds
from phalanx._elastic.torchelastic import LocalElasticAgent
from phalanx._elastic.worker_spec import ChildFailedError, WorkerSpec
from phalanx._logs import logger
from phalanx._rendezvous.handlers import get_handler
from phalanx.errors import ConfigError

_SHUTDOWN = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


@dataclass
class LaunchConfig:
    """How `elastic_launch` runs workers on this host, together with other hosts."""

    min_nodes: int
    """The fewest hosts in a round."""
    max_nodes: int
    """The most hosts in a round."""
    nproc_per_node: int
    """Workers on this host."""
    logs_specs: Any = None
    """Where output goes: a log spec of ours or of torch's; by default to this process's streams."""
    run_id: str = ""
    """What names the app; by default a random one, which no host that comes later knows."""
    role: str = "default_role"
    """What these workers are."""
    rdzv_endpoint: str = ""
    """Where hosts meet, as HOST:PORT."""
    rdzv_backend: str = "c10d"
    """`static`, `c10d`, or the name of a plugin's."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """Settings of the rendezvous."""
    rdzv_timeout: int = -1
    """The setting `timeout`, where it is not -1."""
    max_restarts: int = 3
    """How often all workers are started anew when one has failed."""
    monitor_interval: float = 0.1
    """Seconds between looks whether hosts wait to come in, for handlers that have to be asked."""
    start_method: str = "zygote"
    """As for `LocalElasticAgent`."""
    log_line_prefix_template: str | None = None
    """As for `LocalElasticAgent`."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """Taken, and without effect: see `phalanx.metrics.configure`."""
    local_addr: str | None = None
    """The address that others reach this host at."""
    event_log_handler: str = "null"
    """As for `WorkerSpec`."""
    numa_options: Any = None
    """As for `WorkerSpec`."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """Taken, and without effect: SIGTERM and SIGINT end it in order."""
    duplicate_stdout_filters: list[str] | None = None
    """As for `WorkerSpec`."""
    duplicate_stderr_filters: list[str] | None = None
    """As for `WorkerSpec`."""
    virtual_local_rank: bool = False
    """As for `WorkerSpec`."""
    shutdown_timeout: int | None = None
    """As for `LocalElasticAgent`; by default $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30."""

    def __post_init__(self) -> None:
        """Check what was given. Raises `ConfigError`."""
        check_bounds(self.min_nodes, self.max_nodes)
        if not isinstance(self.nproc_per_node, int) or self.nproc_per_node < 1:
            raise ConfigError(f"nproc_per_node={self.nproc_per_node!r}: must be 1 or more.")
        if self.rdzv_timeout != -1:
            self.rdzv_configs = {**self.rdzv_configs, "timeout": self.rdzv_timeout}
        if self.shutdown_timeout is None:
            text = os.environ.get(_SHUTDOWN, "30")
            if not text.isdecimal():
                raise ConfigError(f"{_SHUTDOWN}={text}: must be a number of seconds, such as 30.")
            self.shutdown_timeout = int(text)
        elif self.shutdown_timeout < 0:
            raise ConfigError(f"shutdown_timeout={self.shutdown_timeout}: must be 0 or more.")
        if not self.run_id and self.min_nodes > 1:
            raise ConfigError(f"run_id is empty: {self.min_nodes} hosts need it to find each other")


class elastic_launch:  # noqa: N801 the name that programs know
    """Runs a function or a program on this host's workers: `elastic_launch(config, fn)(*args)`."""

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: Any = None,
    ) -> None:
        """Describe it; calling the object runs it.

        Args:
            config: How and where.
            entrypoint: The function that each worker calls, or a program that each becomes.
            health_check_server: A server that runs already; its `stop` is called at the end.

        Raises:
            ConfigError: Something given is not what it should be.
        """
        if not isinstance(config, LaunchConfig):
            raise ConfigError(f"config must be a LaunchConfig, not {config!r}.")
        if not callable(entrypoint) and not isinstance(entrypoint, str):
            raise ConfigError(f"{entrypoint!r} is neither a function nor a program.")
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run to the end; gives the values of this host's workers, by global rank.

        Raises:
            ChildFailedError: Workers failed.
            RendezvousError: Hosts could not meet.
        """
        return launch_agent(
            self._config,
            self._entrypoint,
            list(args),
            health_check_server=self._health_check_server,
        )


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: Sequence[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """Run a function or a program on this host's workers, to the end.

    Args:
        config: How and where.
        entrypoint: The function that each worker calls, or a program that each becomes.
        args: Its positional arguments; a program's words.
        health_check_server: A server that runs already; its `stop` is called at the end.

    Returns:
        The values of this host's workers, by global rank.

    Raises:
        ChildFailedError: Workers failed.
        ConfigError: Something given is not what it should be.
        RendezvousError: Hosts could not meet.
    """
    if not config.run_id:
        config.run_id = uuid.uuid4().hex
        if config.max_nodes > 1:
            logger.warning(
                "phalanx: LaunchConfig has no run_id; it is %s, which other hosts need to join",
                config.run_id,
            )
    handler = get_handler(
        config.rdzv_backend,
        config.rdzv_endpoint,
        config.run_id,
        config.min_nodes,
        config.max_nodes,
        **config.rdzv_configs,
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    assert config.shutdown_timeout is not None
    agent = LocalElasticAgent(
        spec,
        logs_specs=config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=config.shutdown_timeout,
        health_check_server=health_check_server,
    )
    result = agent.run()
    if result.is_failed():
        raise ChildFailedError(spec.get_entrypoint_name(), result.failures)
    return result.return_values

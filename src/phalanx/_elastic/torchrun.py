"""From torchrun's options to this host's part of the app."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Any

from phalanx._core import environment
from phalanx._core.environment import defaults
from phalanx._core.ranks import HOST
from phalanx._elastic import host_work, torch_logs_specs
from phalanx._elastic.command import numa
from phalanx._elastic.command.torchrun_options import TorchrunOptions
from phalanx._elastic.torchrun_logs import PREFIX, TorchrunLogSpec
from phalanx._launcher import payload
from phalanx._launcher.planning import imports
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.session.app_run import AppRun
from phalanx._launcher.session.decider import MakeDecider
from phalanx._rendezvous import handlers
from phalanx._rendezvous.tcp.handler import TcpHandler
from phalanx._system import network
from phalanx._system.near_files import current_directory, no_such_file
from phalanx._worker import script
from phalanx.errors import ConfigError


def start(options: TorchrunOptions) -> AppRun[Any]:
    """Start it. Raises `ConfigError` for what cannot be done."""
    _refuse(options)
    work = _work(options)
    alone = options.max_hosts == 1
    prepared = host_work.prepare(work, is_alone=alone and options.backend in handlers.OWN)
    app = prepared.start(decide=_decide(options))
    if options.backend == "static":
        _use_all_descriptors()
    return app


def _use_all_descriptors() -> None:
    """Every worker's connection to the store goes through this process, and costs two.

    The agent was started before: workers find the user's own limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _refuse(options: TorchrunOptions) -> None:
    """Say what cannot be honoured, instead of passing over it."""
    if options.event_log_handler not in ("null", "console"):
        raise ConfigError(
            f"--event-log-handler {options.event_log_handler}: choose null or console."
        )
    if options.host_failures and options.backend not in handlers.OWN:
        raise ConfigError(
            f"--host-failures {options.host_failures}: the rendezvous backend {options.backend} "
            f"does not count them. Use {', '.join(handlers.OWN)}."
        )
    if options.kind in ("script", "path") and not os.path.exists(options.program):
        raise ConfigError(no_such_file(options.program))


def _work(options: TorchrunOptions) -> host_work.HostWork:
    kind, program, words = options.kind, options.program, options.arguments
    if options.python != sys.executable and kind in ("script", "module"):
        flag = ("-m",) if kind == "module" else ()
        kind, program, words = "binary", options.python, ("-u", *flag, program, *words)
    needs, path = _look(kind, program)
    args = (kind, program, words, options.virtual_local_rank, _processors(options))
    handled = ",".join(number.name for number in options.signals_to_handle)
    extra = {"TORCHELASTIC_SIGNALS_TO_HANDLE": handled}
    if options.omp_num_threads is not None:
        extra["OMP_NUM_THREADS"] = options.omp_num_threads
    return host_work.HostWork(
        function=payload.pack(script.run, args, {}, needs),
        needs=needs,
        title=os.path.basename(options.program),
        workers=options.workers,
        hostname=os.environ.get(HOST, ""),  # as whoever started us calls it
        run_id=options.run_id,
        role=options.role,
        max_restarts=options.max_restarts,
        start_method=options.start_method,
        stop_grace=float(options.shutdown_timeout),
        heartbeat_timeout=options.heartbeat_timeout,
        host_checks=options.host_checks,
        host_failures=options.host_failures,
        log_spec=_log_spec(options),
        exits=True,
        extra_env=defaults({}, extra),
        frame={
            "python_path": (*path, *_own_path()),
            "argv": (program, *words),
            "main_file": os.path.abspath(program) if kind == "script" else None,
            "terminal": _terminal(),
            "interface": _interface(options),
        },
    )


def _log_spec(options: TorchrunOptions) -> TorchrunLogSpec:
    ours = TorchrunLogSpec(
        run_id=options.run_id,
        role=options.role,
        redirects=options.redirects,
        tee=options.tee,
        log_dir=options.log_dir,
        local_ranks=options.local_ranks_filter,
        ranks=options.ranks_filter,
        prefix=options.log_line_prefix_template or PREFIX,
        duplicates=(options.duplicate_stdout_filters, options.duplicate_stderr_filters),
    )
    if options.logs_specs in (None, "default"):
        return ours
    return torch_logs_specs.with_class(options.logs_specs, ours)


def _processors(options: TorchrunOptions) -> tuple[tuple[int, ...], ...]:
    """Those that each local rank is bound to; none where they are not bound."""
    if options.numa_binding is None:
        return ()
    environ = environment.users(os.environ)
    allowed = os.sched_getaffinity(0)
    return numa.choose(options.numa_binding, options.workers, environ, allowed)


def _interface(options: TorchrunOptions) -> str:
    """The one that has the address which the user gave as this host's; empty without one."""
    own = options.local_addr or ""
    if options.max_hosts == 1 or network.is_loopback(own):
        return ""
    return network.interface_of(own) or ""


def _terminal() -> str:
    """The terminal we were started at, by a path that our workers can open; empty for none.

    One that something else is in the foreground of is not ours to read.
    """
    try:
        ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return ""
    return f"/proc/{os.getpid()}/fd/0" if ours else ""


def _look(kind: str, program: str) -> tuple[Needs, tuple[str, ...]]:
    """What a program imports, and where it looks for that first."""
    nothing = Needs((), torch=False)
    if kind == "module":
        cwd = current_directory()
        sys.path.insert(0, cwd)
        try:
            found = imports.find_source(program)
            if found is not None and found.name == "__init__.py":
                found = found.with_name("__main__.py")
        finally:
            sys.path.remove(cwd)
        needs = nothing if found is None else imports.of_file(found, "", program)
        return needs, () if sys.flags.safe_path else (cwd,)
    if kind == "script":
        directory = os.path.dirname(os.path.realpath(program))
        sys.path.insert(0, directory)
        try:
            needs = imports.of_file(Path(program), "") if os.path.isfile(program) else nothing
        finally:
            sys.path.remove(directory)
        return needs, () if sys.flags.safe_path else (directory,)
    if kind == "path" and os.path.isfile(program):
        return imports.of_file(Path(program), ""), ()
    return nothing, ()


def _own_path() -> list[str]:
    """Where this interpreter looks, but for the directory of the command itself."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return path if sys.flags.safe_path else path[1:]


# ── meeting the others ────────────────────────────────────────────────────────


def _decide(options: TorchrunOptions) -> MakeDecider:
    if options.backend in handlers.OWN:
        return host_work.decide_over_tcp(_own_handler(options))
    handler = handlers.get_handler(
        options.backend,
        options.endpoint,
        options.run_id,
        options.min_hosts,
        options.max_hosts,
        **options.rdzv_conf,
    )
    from phalanx._elastic.handler_decider import HandlerDecider

    return lambda plan, now: HandlerDecider(
        plan, handler, options.monitor_interval, now, local_addr=options.local_addr
    )


def _own_handler(options: TorchrunOptions) -> TcpHandler:
    given: dict[str, Any] = {"local_addr": options.local_addr, **options.rdzv_conf}
    if options.backend == "static":
        given |= {"node_rank": options.node_rank, "is_host": options.node_rank == 0}
    elif options.standalone:
        given["is_host"] = True
    at = options.endpoint
    if not options.backend.startswith("etcd"):  # which may have several
        at = f"[{options.endpoint_host or 'localhost'}]:{options.endpoint_port or 0}"
    bounds = options.min_hosts, options.max_hosts
    return handlers.own_handler(options.backend, at, options.run_id, *bounds, given, lenient=True)

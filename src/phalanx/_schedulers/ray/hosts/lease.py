"""Nodes of a Ray cluster as hosts for launches.

Within a Ray program the placement group is the program's own, and goes with it. From outside, a job
on the cluster has it (`lend_driver`), and what keeps that job is a connection of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from phalanx._channel import tokens
from phalanx._channel.trust import NotTrusted
from phalanx._logs import logger
from phalanx._schedulers.authoring import make_app_id
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.ray import command_stream, job_log
from phalanx._schedulers.ray.api.addresses import dashboard_of, within_program
from phalanx._schedulers.ray.api.dashboard import Dashboard
from phalanx._schedulers.ray.api.job import make_job, state_of, with_driver
from phalanx._schedulers.ray.api.package import pack_driver, read_requirements
from phalanx._schedulers.ray.command_stream import RecordStream
from phalanx._schedulers.ray.hosts.exec_stream import GONE, exec_command
from phalanx._schedulers.ray.options import RayOptions
from phalanx._system import daemon_thread
from phalanx.errors import ConfigError, PhalanxError, SchedulerError

_LOOK = 0.1
_POLL = 0.5
"""Seconds between two questions for the job, until its driver can be reached."""
_REACHING = 20.0
"""Seconds in which the driver must be reached."""
_AGAIN = 1.0
_AWAY = 30.0
"""Seconds after which a driver that cannot be reached again is given up."""
_ALONE = 30.0
"""Seconds without this process after which the driver gives the hosts back."""
_ENDING = 15.0
_LAST = 5.0


def lend(request: LeaseRequest) -> Lease:
    """Ask for hosts; does not wait. Raises `ConfigError` and `SchedulerError`."""
    options = request.options
    assert isinstance(options, RayOptions)
    if name := options.for_apps:
        raise ConfigError(f"ray: {name} has no effect on lent hosts: the launcher sends files.")
    bundles = [options.host_bundle] * request.num_hosts
    is_named = options.dashboard_address is not None or options.cluster != "auto"
    if not is_named and within_program():
        return ProgramLease(bundles, options)
    return JobLease(request.name, bundles, options)


class _Access:
    """What commands that lead to hosts need, in memory of this process: in no file, in nobody's
    arguments.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._file = open(os.memfd_create("phalanx-ray"), "w")  # noqa: SIM115 see `close`
        self._lock = threading.Lock()
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        self.set({})

    def set(self, hosts: dict[str, dict[str, Any]]) -> None:
        """How each host is reached."""
        text = json.dumps({"token": self._token, "hosts": hosts})
        with self._lock:
            if self._file.closed:
                return
            self._file.seek(0)
            self._file.write(text.ljust(os.fstat(self._file.fileno()).st_size))
            self._file.flush()

    def close(self) -> None:
        """Nobody can read it any more. Idempotent."""
        with self._lock:
            self._file.close()


class _RayLease(Lease):
    """What both have: hosts as somebody who asks Ray describes them."""

    poll_interval = 0.05

    def __init__(self, options: RayOptions) -> None:
        self._token = tokens.make_token()
        # Where the packages are: this process's own interpreter may be there, without them.
        self._pythons = ("python3",) if options.requirements is not None else ()
        self._access = _Access(self._token)
        self._described: dict[str, Any] = {"hosts": [], "ready": False, "waiting": "", "end": ""}
        self._state = "PENDING"
        self._end = ""
        self._given_back = threading.Event()
        self._known: set[str] = set()
        self._awaited = 0
        """How many hosts are on their way in the place of others."""

    def _target(self, name: str, address: str, port: int) -> dict[str, Any]:
        """How a host is reached."""
        raise NotImplementedError

    def _take(self, described: dict[str, Any]) -> None:
        targets = {host[0]: self._target(*host) for host in described["hosts"]}
        self._access.set(targets)
        self._awaited = max(0, self._awaited - len(targets.keys() - self._known))
        self._known |= targets.keys()
        self._described = described

    def status(self) -> LeaseStatus:
        """How the hosts stand, as was last heard."""
        described = self._described
        if self._given_back.is_set():
            return LeaseStatus(LeasePhase.ENDED, reason="given back")
        end = self._end or (described["end"] if not self._awaited else "")
        if end:
            return LeaseStatus(LeasePhase.ENDED, reason=end)
        hosts = tuple(self._lent(host[0]) for host in described["hosts"])
        if described["ready"]:
            return LeaseStatus(LeasePhase.READY, hosts, "RUNNING", described["waiting"])
        return LeaseStatus(LeasePhase.WAITING, hosts, self._state, described["waiting"])

    def _lent(self, name: str) -> LentHost:
        command = exec_command(self._access.path, name)
        return LentHost(name, command, reconnect_timeout=0.0, gone_code=GONE, pythons=self._pythons)


class ProgramLease(_RayLease):
    """Hosts of the cluster that this very program is connected to."""

    def __init__(self, bundles: list[dict[str, float]], options: RayOptions) -> None:
        """Ask for them; does not wait."""
        from phalanx._schedulers.ray.cluster.lent_nodes import LentNodes

        super().__init__(options)
        self.id = "placement group"
        pip = read_requirements(options.requirements)
        self._nodes = LentNodes(bundles, options.strategy, self._token, options.env, pip)
        self._looking = threading.Thread(target=self._look, name="phalanx-ray", daemon=True)
        self._looking.start()

    def _target(self, name: str, address: str, port: int) -> dict[str, Any]:
        return {"address": address, "port": port, "through": ""}

    def _look(self) -> None:
        while not self._given_back.is_set():
            try:
                self._nodes.look()
                self._take(self._nodes.describe())
            except Exception as error:  # noqa: BLE001 whoever asks for the status gets it
                self._end = f"{type(error).__name__}: {error}"
                return
            self._given_back.wait(_LOOK)

    def replace(self, name: str) -> bool:
        """Place its bundle again."""
        if self._given_back.is_set():
            return False
        self._awaited += 1
        self._nodes.replace(name)
        return True

    def give_back(self) -> None:
        """Remove the placement group."""
        if self._given_back.is_set():
            return
        self._given_back.set()
        self._looking.join()
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():  # otherwise it went with the program's
            self._nodes.remove()
        self._access.close()


class JobLease(_RayLease):
    """Hosts that a job on the cluster holds."""

    def __init__(self, name: str, bundles: list[dict[str, float]], options: RayOptions) -> None:
        """Submit it; does not wait."""
        super().__init__(options)
        self._dashboard = Dashboard(dashboard_of(options, os.environ))
        self.id = make_app_id(name)
        self._options = options
        self._bundles = bundles
        self._relay: tuple[str, int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wishes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._kept = daemon_thread.start(self._keep)

    def _target(self, name: str, address: str, port: int) -> dict[str, Any]:
        assert self._relay is not None
        return {"address": self._relay[0], "port": self._relay[1], "through": name}

    # ── the job ───────────────────────────────────────────────────────────────

    def _keep(self) -> None:
        try:
            self._submit()
            if not self._given_back.is_set():
                asyncio.run(self._hold())
        except PhalanxError as error:
            self._end = str(error)
        except Exception as error:  # noqa: BLE001 whoever asks for the status gets it
            self._end = f"{type(error).__name__}: {error}"

    def _submit(self) -> None:
        driver = {
            "kind": "lend",
            "token": self._token,
            "bundles": self._bundles,
            "strategy": self._options.strategy,
            "relay_port": self._options.relay_port,
            "alone": _ALONE,
            "env": self._options.env,
        }
        uri = pack_driver(driver).provide(self._dashboard)
        pip = read_requirements(self._options.requirements)
        job = make_job(self.id, self._options, {}, pip)
        if not self._given_back.is_set():
            self._dashboard.submit(with_driver(job, uri))

    async def _hold(self) -> None:
        """Reach the driver, and stay connected with it."""
        self._loop = asyncio.get_running_loop()
        relay = await self._found()
        if relay is None:
            return
        stream = await self._reach(relay)
        while stream is not None and not self._given_back.is_set():
            await self._converse(stream)
            if not self._given_back.is_set():
                stream = await self._reach_again()

    async def _found(self) -> dict[str, Any] | None:
        """Where the driver listens, once it does; None if the hosts are given back meanwhile."""
        while not self._given_back.is_set():
            log = await asyncio.to_thread(self._dashboard.log, self.id)
            if relay := job_log.relay_of(log):
                return relay
            job = await asyncio.to_thread(self._dashboard.job, self.id) or {}
            if state_of(job).is_final:
                raise SchedulerError(_last_words(job, log))
            await asyncio.sleep(_POLL)
        return None

    async def _reach(self, relay: dict[str, Any]) -> RecordStream:
        addresses = list(dict.fromkeys([*relay["addresses"], self._dashboard.host]))
        port = relay["port"]
        errors = {}
        limit = time.monotonic() + _REACHING
        while time.monotonic() < limit:
            for address in addresses:
                try:
                    stream = await command_stream.connect(address, port, self._token, "lease")
                except (OSError, NotTrusted, TimeoutError) as error:
                    errors[address] = str(error) or type(error).__name__
                else:
                    self._relay = address, port
                    return stream
            await asyncio.sleep(_POLL)
        tried = "; ".join(f"{address}:{port}: {why}" for address, why in errors.items())
        raise SchedulerError(
            f"the hosts on Ray cannot be reached from here ({tried}). A launcher outside the "
            "cluster needs a way to one port of its head: set relay_port=… and open or forward "
            "it, or run the launcher on a node of the cluster."
        )

    async def _reach_again(self) -> RecordStream:
        """After a connection that broke. Raises `SchedulerError` where the driver is gone."""
        assert self._relay is not None
        limit = time.monotonic() + _AWAY
        while True:
            try:
                return await command_stream.connect(*self._relay, self._token, "lease")
            except (OSError, NotTrusted, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if (end := await asyncio.to_thread(self._how_it_ended)) is not None:
                raise SchedulerError(end)
            if time.monotonic() > limit:
                raise SchedulerError(f"the job on Ray does not answer: {reason}")
            await asyncio.sleep(_AGAIN)

    def _how_it_ended(self) -> str | None:
        """Why the job has; None if it goes on, as far as is known."""
        try:
            job = self._dashboard.job(self.id)
        except SchedulerError:
            return None
        return _last_words(job or {}, "") if job is None or state_of(job).is_final else None

    async def _converse(self, stream: RecordStream) -> None:
        """Until the connection breaks, or the hosts are given back."""

        async def send() -> None:
            while True:
                wish = await self._wishes.get()
                await stream.send(json.dumps(wish).encode())

        sending = asyncio.create_task(send())
        try:
            async for record in stream.records():
                if record:
                    self._take(json.loads(record))
        finally:
            sending.cancel()
            stream.close()

    def _wish(self, wish: dict[str, Any]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._wishes.put_nowait, wish)

    # ── ends ──────────────────────────────────────────────────────────────────

    def replace(self, name: str) -> bool:
        """Place its bundle again."""
        if self._given_back.is_set() or self._end:
            return False
        self._awaited += 1
        self._wish({"replace": name})
        return True

    def give_back(self) -> None:
        """End the job; Ray keeps that there was one."""
        if self._given_back.is_set():
            return
        self._given_back.set()
        self._wish({"give_back": True})
        with contextlib.suppress(TimeoutError):
            self._kept.result(_LAST)
        try:
            if self._loop is None or self._relay is None:
                self._dashboard.stop(self.id)  # nobody there could be told
            self._stop()
        finally:
            self._access.close()

    def _stop(self) -> None:
        limit = time.monotonic() + _ENDING
        while True:
            job = self._dashboard.job(self.id)
            if job is None:
                return
            if state_of(job).is_final:
                return
            if time.monotonic() > limit:
                logger.warning("phalanx: the job %s on Ray has not ended yet", self.id)
                return
            if time.monotonic() > limit - _ENDING + _LAST:
                self._dashboard.stop(self.id)
            time.sleep(_LOOK)


def _last_words(job: dict[str, Any], log: str) -> str:
    from phalanx._schedulers.replicas.error_text import in_text, shown

    if str(job.get("status")) == "STOPPED":
        return "the job on Ray was stopped"
    said = shown(in_text(job_log.last_words(log))) or shown(in_text(str(job.get("message") or "")))
    return f"the job on Ray has ended: {said}" if said else "the job on Ray has ended"

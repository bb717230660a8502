"""Pods as hosts for launches.

Bare pods, not a Job: what the cluster refuses (a quota, a right, a policy) is then an answer to our
request instead of an event somewhere, a lost one is replaced at once and under a new name, and
nothing depends on what a version's Job controller makes of a pod that ends. What a Job would do,
others do: a pod ends by itself when nobody has run in it for half a minute, `Guard` deletes the
pods of a launcher that was killed, and the next lease what is left of ended ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from phalanx._logs import logger
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster
from phalanx._schedulers.kubernetes.api.credentials import SharedCredentials, credentials_of
from phalanx._schedulers.kubernetes.api.exec_stream import GONE, exec_command
from phalanx._schedulers.kubernetes.hosts import lent_pods
from phalanx._schedulers.kubernetes.hosts.guard import LEASE, Guard, delete_lease
from phalanx._schedulers.kubernetes.hosts.lent_pods import SeenPod
from phalanx._schedulers.kubernetes.manifest import merged, moment
from phalanx._schedulers.kubernetes.options import KubernetesOptions
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx.errors import PhalanxError, SchedulerError, SchedulerUnreachable

RECONNECT_TIMEOUT = 90.0
"""Seconds for which an agent waits for a launcher whose stream has broken, unless asked for: an API
server that is unreachable for a minute, and its start."""
_SOON, _LATER = 0.2, 1.0
"""Seconds between two looks at the pods: at first, and after a while."""
_AT_ONCE = 16
_AGAIN = 2.0
"""Seconds after which a replacement that was refused is asked for again."""
_AT_MOST = 30.0
"""The same for replacements that end before they run, one after the other."""
_OLD = 120.0
_JOINED = 2.0


class KubernetesLease(Lease):
    """Pods of one image, created at once; another for each that is lost."""

    def __init__(
        self,
        request: LeaseRequest,
        template: Mapping[str, Any],
        user: str,
        environ: Mapping[str, str],
    ) -> None:
        """Begin to create them; does not wait. Raises `ConfigError` and `SchedulerError`.

        The user's name is one that a label can have.
        """
        options = request.options
        assert isinstance(options, KubernetesOptions)
        assert request.image is not None
        self._image, self._options, self._num_hosts = request.image, options, request.num_hosts
        self._cluster = Cluster(context=options.context, namespace=options.namespace)
        self._version = options.version or self._cluster.version()  # or it is said at once
        self.id = names.make_name(request.name)
        self._user, self._template = user, template
        self._env = options.copied(environ)
        self._secret = self.id if self._env else None
        self._lock = threading.Lock()
        self._numbers = count()
        self._names: list[str] = []
        """The pods that are meant to be there, in the order of ranks."""
        self._pods: dict[str, SeenPod] = {}
        """What was last seen of them."""
        self._replacing = 0
        """How many pods are on their way in the place of others."""
        self._coming: dict[str, int] = {}
        """Replacements that have not run yet, and how many ended before in the place of each."""
        self._avoided: set[str] = set()
        """Nodes on which pods were lost: the scheduler may not know yet that they are dead."""
        self._problem = ""
        """Why a replacement does not come."""
        self._end = ""
        self._was_ready = self._is_deleted = False
        self._given_back = threading.Event()
        self._credentials = SharedCredentials(credentials_of(self._cluster.access))
        self._context = self._cluster.access.context
        has_secret = self._secret is not None
        self._guard = Guard(self._context, self._cluster.namespace, self.id, has_secret=has_secret)
        self._kept = threading.Thread(target=self._keep, name="phalanx-kubernetes", daemon=True)
        self._kept.start()

    # ── creating and looking ──────────────────────────────────────────────────

    def _keep(self) -> None:
        """Create the pods, and look at them for as long as they are borrowed."""
        try:
            self._create_all()
        except PhalanxError as error:
            self._end = str(error)
            return
        except Exception as error:  # noqa: BLE001 whoever asks for the status gets it
            self._end = f"{type(error).__name__}: {error}"
            return
        began = time.monotonic()
        swept = False
        while not self._given_back.is_set():
            try:
                self._look()
                if self._was_ready and not swept:
                    swept = True
                    self._remove_ended()
            except PhalanxError:
                pass  # the API server may come back, and the pods go on meanwhile
            young = time.monotonic() - began < 10 and not self._was_ready
            self._given_back.wait(_SOON if young else _LATER)

    def _create_all(self) -> None:
        if self._secret is not None:
            self._cluster.create("secrets", self._secret_object())
        names = [self._name() for _ in range(self._num_hosts)]
        with ThreadPoolExecutor(min(_AT_ONCE, len(names)), "phalanx-kubernetes") as pool:
            made = [pool.submit(self._create, name) for name in names]
        for future in made:
            future.result()
        with self._lock:
            self._names = names

    def _name(self) -> str:
        with self._lock:
            return f"{self.id}-{next(self._numbers)}"

    def _create(self, name: str) -> None:
        if self._given_back.is_set():
            return
        made = lent_pods.pod(name, self.id, self._user, self._image, self._options, self._secret)
        with self._lock:
            made = lent_pods.avoiding_nodes(made, self._avoided)
        made = lent_pods.in_queue(made, self._options, self.id, self._num_hosts)
        self._cluster.create("pods", merged(made, self._template))

    def _secret_object(self) -> dict[str, Any]:
        labels = {LEASE: self.id, names.USER: self._user}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._secret, "labels": labels},
            "stringData": self._env,
        }

    def _look(self) -> None:
        with self._lock:
            created = self._names
        listed = self._cluster.list("pods", f"{LEASE}={self.id}")
        found = {one["metadata"]["name"]: lent_pods.seen(one) for one in listed}
        gone = [name for name in created if name not in found]
        with self._lock:
            nodes = {name: one.node for name, one in self._pods.items()}
            for name in gone:
                node = nodes.get(name, "")
                found[name] = SeenPod(name, False, end="it was deleted", node=node)
            self._pods = found
            if self._is_whole():
                self._was_ready = True
            coming = {name: n for name, n in self._coming.items() if name in found}
            for name in coming:
                if found[name].is_running or found[name].end:
                    del self._coming[name]
        for name, ended in coming.items():
            if end := found[name].end:  # no launch knows of it
                logger.warning(
                    "phalanx: %s ended before it ran (%s); requesting another", name, end
                )
                self._replace(name, ended + 1)

    def _is_whole(self) -> bool:
        running = [name for name in self._names if name in self._pods]
        return len(running) >= self._num_hosts and all(
            self._pods[name].is_running for name in running
        )

    def _remove_ended(self) -> None:
        """Pods of this user's that have ended by themselves: their launcher's machine was lost."""
        mine = f"{LEASE},{names.USER}={self._user}"
        listed = self._cluster.list("pods", mine)
        ended = [one for one in listed if _has_ended_long_ago(one)]
        for one in ended:
            self._cluster.delete("pods", one["metadata"]["name"])
        going = {_lease(one) for one in listed if one not in ended}
        for lease in {_lease(one) for one in ended} - going:
            self._cluster.delete("secrets", lease)  # it has one if variables were copied

    # ── how it stands ─────────────────────────────────────────────────────────

    def status(self) -> LeaseStatus:
        """How the pods stand, as was last seen."""
        if self._given_back.is_set():
            return LeaseStatus(LeasePhase.ENDED, reason="given back")
        if self._end:
            return LeaseStatus(LeasePhase.ENDED, reason=self._end)
        with self._lock:
            if not self._names:
                return LeaseStatus(LeasePhase.WAITING, state="CREATING")
            pods = [self._pods[name] for name in self._names if name in self._pods]
            was_ready, problem = self._was_ready, self._problem
            can_come = self._replacing > 0 or len(pods) < len(self._names)
        hosts = tuple(self._lent(one.name) for one in pods if one.is_running)
        ended = [one for one in pods if one.end]
        if not was_ready:
            if ended:
                reason = f"{ended[0].name}: {ended[0].end}"
                return LeaseStatus(LeasePhase.ENDED, hosts, "FAILED", reason)
            reason = lent_pods.summary(pods, self._num_hosts)
            return LeaseStatus(LeasePhase.WAITING, hosts, "PENDING", reason)
        if len(ended) == len(pods) and not can_come:
            reason = f"all pods have ended ({ended[-1].end})" if ended else "all pods have ended"
            return LeaseStatus(LeasePhase.ENDED, reason=reason)
        return LeaseStatus(LeasePhase.READY, hosts, "RUNNING", problem)

    def _lent(self, name: str) -> LentHost:
        command = exec_command(
            self._credentials.path, self._context, self._cluster.namespace, name, self._version
        )
        return LentHost(name, command, reconnect_timeout=RECONNECT_TIMEOUT, gone_code=GONE)

    # ── ends ──────────────────────────────────────────────────────────────────

    def replace(self, name: str) -> bool:
        """Create another pod, on a thread; what is refused is asked for again."""
        if self._given_back.is_set():
            return False
        self._replace(name)
        return True

    def _replace(self, name: str, ended: int = 0) -> None:
        """`ended` replacements have ended before they ran: the next one waits the longer."""
        with self._lock:
            self._replacing += 1
            if (lost := self._pods.get(name)) is not None and lost.node:
                self._avoided.add(lost.node)

        def create() -> None:
            new, is_created = self._name(), False
            if ended:
                self._given_back.wait(min(_AGAIN * 2 ** (ended - 1), _AT_MOST))
            while not is_created and not self._given_back.is_set():
                try:
                    self._cluster.delete("pods", name, grace=0)
                    self._create(new)
                    is_created = True
                except PhalanxError as error:
                    self._problem = str(error)
                    self._given_back.wait(_AGAIN)
            with self._lock:
                self._problem = ""
                self._replacing -= 1
                self._names = [*(one for one in self._names if one != name), new]
                self._coming[new] = ended
            if self._given_back.is_set():
                self._delete()

        threading.Thread(target=create, name="phalanx-kubernetes", daemon=True).start()

    def give_back(self) -> None:
        """Delete the pods. Where no API server answers, a process of ours goes on trying."""
        self._given_back.set()
        if self._is_deleted:
            return
        self._kept.join(_JOINED)
        self._is_deleted = True
        try:
            self._delete()
        except SchedulerUnreachable as error:
            self._guard.take_over()
            raise SchedulerUnreachable(
                f"{error}. The pods are deleted as soon as it answers"
            ) from None
        except SchedulerError:
            self._guard.stop()
            raise
        else:
            self._guard.stop()
        finally:
            self._credentials.close()
            self._cluster.close()

    def _delete(self) -> None:
        while delete_lease(self._cluster, self.id, has_secret=self._secret is not None):
            time.sleep(_SOON)  # one that was just being created may come


def _lease(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"][LEASE])


def _has_ended_long_ago(pod: Mapping[str, Any]) -> bool:
    created = moment(pod["metadata"].get("creationTimestamp")) or 0.0
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed") and time.time() - created > _OLD

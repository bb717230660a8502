"""The `kubernetes` scheduler: apps as Jobs, whose record is a Service of the cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from phalanx._images.plan import ImagePlan, plan_image
from phalanx._schedulers.authoring import check_script, need, needs_phalanx, workspace_of
from phalanx._schedulers.daemon import Successors
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster, NotInCluster
from phalanx._schedulers.kubernetes.api.connection import EXTRA
from phalanx._schedulers.kubernetes.apps.actions import (
    carry_out,
    delete_all,
    find,
    find_all,
    is_due,
)
from phalanx._schedulers.kubernetes.apps.archive import pack_phalanx, pack_project
from phalanx._schedulers.kubernetes.apps.creation import build_images, create_objects
from phalanx._schedulers.kubernetes.apps.logs import PodOutput
from phalanx._schedulers.kubernetes.apps.request import (
    KubernetesRequest,
    RequestFiles,
    make_request,
    user_name,
)
from phalanx._schedulers.kubernetes.apps.seen import SeenObjects
from phalanx._schedulers.kubernetes.apps.status import seconds_of, shown_state, status_of
from phalanx._schedulers.kubernetes.apps.supervisor import start_supervisor
from phalanx._schedulers.kubernetes.names import AppName, label
from phalanx._schedulers.kubernetes.options import KubernetesOptions
from phalanx._schedulers.kubernetes.rights import RIGHTS
from phalanx._schedulers.leases import Lease, LeaseRequest
from phalanx._schedulers.replicas.assessment import Assessment, assess
from phalanx._schedulers.scheduler import Capabilities, LogLine, Scheduler, Stream
from phalanx._specs import AppDef, AppStatus, AppSummary, RetryPolicy
from phalanx._specs.app_def import SCRIPT
from phalanx.errors import ConfigError, UnknownApp

_NAME = "kubernetes"
_OVERDUE = 5.0
"""Seconds after which what is to be done for an app has nobody who does it."""
_POLL = 0.3
_SUBMITTING = 120.0
"""Seconds in which an app's Jobs may still be to come."""


class KubernetesScheduler(Scheduler[KubernetesOptions, KubernetesRequest]):
    """Runs apps as Jobs of the cluster that the user's kubeconfig names."""

    options = KubernetesOptions
    rights = RIGHTS
    capabilities = Capabilities(
        times=True,
        mounts=True,
        several_roles=True,
        keeps_apps=True,
        lends_hosts=True,
        retry_policies=frozenset(RetryPolicy),
        runs_images=True,
    )
    poll_interval = 1.0

    def __init__(self, session_name: str, **kwargs: object) -> None:
        """Remember the session. Nothing is asked yet."""
        super().__init__(session_name, **kwargs)
        self._clusters: dict[tuple[str | None, str | None], Cluster] = {}
        self._successors = Successors(start_supervisor)

    def close(self) -> None:
        """Let go of connections. Apps go on."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def _cluster(self, context: str | None, namespace: str | None) -> Cluster:
        key = context, namespace
        if key not in self._clusters:
            self._clusters[key] = Cluster(context=context, namespace=namespace)
        return self._clusters[key]

    # ── submitting ────────────────────────────────────────────────────────────

    def dryrun(self, app: AppDef, options: KubernetesOptions) -> KubernetesRequest:
        """The objects that would be created. Asks the server for its version, and nothing else."""
        need("kubernetes", EXTRA)
        if name := options.for_lent_hosts:
            raise ConfigError(
                f"{_NAME}: {name} is for hosts that are lent to launches. For an app, set the "
                "resource of its role."
            )
        projects: dict[str, bytes] = {}
        plans: dict[str, ImagePlan] = {}
        packed: dict[str, bytes] = {}
        for role in app.roles:
            if not role.workspace or not role.image:
                continue
            workspace = workspace_of(role)
            script = role.metadata.get(SCRIPT)
            if isinstance(script, str) and not os.path.isabs(script):
                check_script(script, workspace)
            if options.image_repo is not None:
                plans[role.name] = plan_image(role.image, workspace, image_repo=options.image_repo)
            else:
                packed[workspace] = packed.get(workspace) or pack_project(workspace)
                projects[role.name] = packed[workspace]
        files = RequestFiles(
            projects,
            pack_phalanx() if any(map(needs_phalanx, app.roles)) else None,
            _template(options.pod_template),
        )
        version, namespace = options.version, options.namespace
        if version is None or namespace is None:
            cluster = self._cluster(options.context, namespace)
            namespace = cluster.namespace
            version = version or cluster.version()
        return make_request(
            app,
            self.session_name,
            options,
            self.rank0_env,
            namespace,
            version,
            files,
            plans,
            os.environ,
        )

    def submit(self, request: KubernetesRequest) -> str:
        """Have the images, and create the objects.

        Raises `ConfigError`, and `SchedulerError` with the API server's own reason.
        """
        cluster = self._cluster(request.app.context, request.app.namespace)
        images = build_images(request)
        app_id = str(request.app)
        try:
            create_objects(cluster, request, images)
            if request.record.needs_supervisor:
                start_supervisor(app_id)
        except BaseException:  # nobody would know of it
            with contextlib.suppress(NotInCluster):
                cluster.delete("services", request.app.name)
            raise
        return app_id

    # ── how apps stand ────────────────────────────────────────────────────────

    def _find(self, app_id: str) -> tuple[Cluster, AppName, SeenObjects] | None:
        app = AppName.parse(app_id)
        if app is None:
            return None
        cluster = self._cluster(app.context, app.namespace or None)
        seen = find(cluster, app.name)
        if seen is None or seen.is_expired or seen.record.session != self.session_name:
            return None
        return cluster, app, seen

    def describe(self, app_id: str) -> AppStatus | None:
        """How an app stands."""
        found = self._find(app_id)
        if found is None:
            return None
        cluster, _, seen = found
        return status_of(cluster, seen, self._assess(app_id, seen), app_id)

    def list(self) -> list[AppSummary]:
        """All apps of this session and user, in the namespace of the current context."""
        cluster = self._cluster(None, None)
        wanted = {names.SESSION: label(self.session_name), names.USER: label(user_name())}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items())
        apps = []
        for seen in find_all(cluster, selector):
            if seen.is_expired:
                if time.time() - seen.created > _SUBMITTING:
                    cluster.delete("services", seen.name)
                continue
            app_id = str(AppName(seen.name, cluster.namespace))
            state = shown_state(seen, self._assess(app_id, seen))
            handle = f"{_NAME}://{seen.record.session}/{app_id}"
            apps.append(
                AppSummary(app_id, state, seen.record.name, handle, seconds_of(seen, state))
            )
        return apps

    def _assess(self, app_id: str, seen: SeenObjects) -> Assessment:
        """Where something is overdue, whoever was to do it is gone: another is started."""
        assessed = assess(seen.app(app_id), time.time())
        since = max(assessed.since or 0.0, seen.record.created)
        if is_due(assessed) and time.time() - since > _OVERDUE:
            self._successors.start(app_id)
        return assessed

    # ── logs ──────────────────────────────────────────────────────────────────

    def logs(
        self,
        app_id: str,
        role: str,
        replica: int,
        *,
        stream: Stream = Stream.COMBINED,
        since: float | None = None,
        until: float | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """What a replica has printed, all of its pods."""
        found = self._find(app_id)
        if found is None:
            raise UnknownApp(f"no such app: {app_id!r}")
        cluster, app, seen = found
        parts = {part.name: part for part in seen.record.roles}
        if role not in parts:
            raise LookupError(f"{app_id} has no role {role!r}; choose one of {', '.join(parts)}")
        if not 0 <= replica < parts[role].replicas:
            raise LookupError(
                f"{role} of {app_id} has {parts[role].replicas} replicas, no {replica}"
            )

        def has_ended(cluster: Cluster) -> bool:
            seen = find(cluster, app.name)
            return seen is None or self._assess(app_id, seen).state.is_final

        self._assess(app_id, seen)
        output = PodOutput(app.name, parts[role].word, (role, replica), has_ended)
        return output.read(cluster, since, until, follow=follow)

    # ── ends ──────────────────────────────────────────────────────────────────

    def cancel(self, app_id: str) -> None:
        """Note that it is cancelled, in the cluster, and stop its Jobs. Blocks until then."""
        found = self._find(app_id)
        if found is not None:
            cluster, app, seen = found
            self._cancel(cluster, app, seen)

    def _cancel(self, cluster: Cluster, app: AppName, seen: SeenObjects) -> None:
        if assess(seen.app(str(app)), time.time()).state.is_final:
            return
        if seen.cancelled is None:
            note = {"metadata": {"annotations": {names.CANCELLED: repr(time.time())}}}
            cluster.patch("services", app.name, note)
        limit = time.monotonic() + seen.record.stop_grace + _PATIENCE
        while True:
            again = find(cluster, app.name)
            if again is None:
                return
            carry_out(cluster, again, str(app))
            going = [job for job in again.jobs if not job.has_ended and not job.is_suspended]
            if not going and all(pod.has_ended for pod in again.pods):
                return
            if time.monotonic() > limit:
                return  # a node that is lost says nothing; the app is cancelled all the same
            time.sleep(_POLL)

    def delete(self, app_id: str) -> None:
        """Remove all of an app from the cluster; its pods end with it."""
        app = AppName.parse(app_id)
        found = self._find(app_id)
        if app is None or found is None:
            return
        cluster, app, _ = found
        delete_all(cluster, app.name)

    # ── hosts for launches ────────────────────────────────────────────────────

    def lend(self, request: LeaseRequest) -> Lease:
        """Create pods; does not wait."""
        from phalanx._schedulers.kubernetes.hosts.lease import KubernetesLease

        need("kubernetes", EXTRA)
        template = _template(request.options.pod_template)
        return KubernetesLease(request, template, label(user_name()), os.environ)


_PATIENCE = 30.0
"""Seconds beyond its grace that a cancelled app is waited for."""


def _template(path: str | None) -> Mapping[str, Any]:
    """The user's own pod template: a Pod, or its metadata and spec. Raises `ConfigError`."""
    if path is None:
        return {}
    import yaml

    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            known = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"pod_template={path}: {error}") from None
    if isinstance(known, dict) and isinstance(known.get("template"), dict):
        known = known["template"]  # a PodTemplate
    if not isinstance(known, dict) or not isinstance(known.get("spec", {}), dict):
        raise ConfigError(f"pod_template={path}: must be a pod, with metadata and spec.")
    return {name: known[name] for name in ("metadata", "spec") if known.get(name)}

"""The objects of an app: a headless Service, Secrets with files, Jobs. Pure.

What only the cluster knows is left open: the uid of the Service, which owns the rest.
"""

from __future__ import annotations

import getpass
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phalanx._core.lazy import attribute_hints
from phalanx._images.plan import ImagePlan
from phalanx._schedulers.authoring import check_text
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.apps.archive import PackedFiles
from phalanx._schedulers.kubernetes.apps.pod import REPLICA_ID, PodMaker
from phalanx._schedulers.kubernetes.apps.record import AppAnnotation, RoleAnnotation
from phalanx._schedulers.kubernetes.names import AppName, job_name, label, role_words
from phalanx._schedulers.kubernetes.options import KubernetesOptions
from phalanx._specs import AppDef, RetryPolicy, Role
from phalanx._specs.substitution import Values
from phalanx.errors import ConfigError

_INDEXED = (1, 22)
_PER_INDEX = (1, 29)
_FAILURE_POLICY = (1, 26)
_SUSPEND = (1, 22)
_QUEUE = "kueue.x-k8s.io/queue-name"
_SECRET_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class KubernetesRequest:
    """What is created."""

    app: AppName
    service: Mapping[str, Any]
    """Owns the rest: whoever deletes it deletes all."""
    secrets: tuple[Mapping[str, Any], ...]
    jobs: tuple[Mapping[str, Any], ...]
    record: AppAnnotation
    options: KubernetesOptions
    plans: Mapping[str, ImagePlan] = field(default_factory=dict)
    """Images that are built first, by the word of their role."""
    hidden_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of this environment, which are not shown."""

    if not TYPE_CHECKING:  # its fields are known
        __getattr__ = attribute_hints(
            {
                "images_to_push": "plans has the images that are built first",
                "resource": "objects has the Service and the Jobs",
            }
        )

    @property
    def objects(self) -> list[Mapping[str, Any]]:
        """All of them but the one that is not shown."""
        return [*self.secrets, self.service, *self.jobs]

    @property
    def env_secret(self) -> str:
        """The name of the one that is not shown."""
        return env_secret(self.app.name)

    def __str__(self) -> str:
        """The objects as YAML that `kubectl apply -f -` takes."""
        import yaml

        shown = f"# {self.app}\n"
        kept = ", ".join(sorted(self.hidden_env)) or "a token"
        shown += f"# and a Secret {self.env_secret}, whose values are not shown: {kept}\n"
        for word, plan in self.plans.items():
            shown += f"# image of {word}: {plan.base} with {plan.num_files} files of {plan.project}"
            shown += f", pushed to {plan.repository}\n"
        text: str = yaml.safe_dump_all(
            self.objects, sort_keys=False, allow_unicode=True, width=100, explicit_start=True
        )
        return shown + text.rstrip("\n")


def env_secret(name: str) -> str:
    """The Secret of an app's variables that are not shown."""
    return f"{name}-env"


def user_name() -> str:
    """Who submits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


@dataclass(frozen=True)
class RequestFiles:
    """What travels with an app."""

    projects: Mapping[str, bytes] = field(default_factory=dict)
    """Archives of workspaces, by role."""
    code: bytes | None = None
    """An archive of Phalanx."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The user's own pod template."""


def make_request(
    app: AppDef,
    session: str,
    options: KubernetesOptions,
    rank0_env: str,
    namespace: str,
    version: tuple[int, int],
    files: RequestFiles,
    plans: Mapping[str, ImagePlan],
    environ: Mapping[str, str],
) -> KubernetesRequest:
    """All objects of an app. Raises `ConfigError`."""
    if not app.roles:
        raise ConfigError(f"app {app.name!r} has no roles.")
    for role in app.roles:
        if not role.entrypoint:
            raise ConfigError(f"role {role.name!r} of {app.name!r} has no entrypoint.")
        if not role.image:
            raise ConfigError(
                f"role {role.name!r} has no image to run in. Name one, such as --image python:3.12"
            )
    check_text(app, options.env)
    name = AppName(names.make_name(app.name), namespace, options.context)
    words = role_words([role.name for role in app.roles])
    roles = tuple(_role_record(role, words[role.name], version) for role in app.roles)
    record = AppAnnotation(
        app.name, session, user_name(), time.time(), options.stop_grace, options.ttl, roles
    )
    maker = _ObjectMaker(name, options, rank0_env, version, record, files)
    hidden = options.copied(environ)
    for variable in hidden:
        if not _SECRET_KEY.fullmatch(variable):
            raise ConfigError(f"copy_env: a Secret cannot have the variable {variable!r}.")
    return KubernetesRequest(
        app=name,
        service=maker.service(),
        secrets=tuple(maker.secrets()),
        jobs=tuple(job for role in app.roles for job in maker.jobs(role, plans.get(role.name))),
        record=record,
        options=options,
        plans={words[role]: plan for role, plan in plans.items()},
        hidden_env=hidden,
    )


def _role_record(role: Role, word: str, version: tuple[int, int]) -> RoleAnnotation:
    alone = role.retry_policy is RetryPolicy.REPLICA and role.max_retries > 0
    is_indexed = version >= (_PER_INDEX if alone else _INDEXED)
    return RoleAnnotation(
        role.name, word, role.num_replicas, role.max_retries, role.retry_policy, is_indexed
    )


@dataclass(frozen=True)
class _ObjectMaker:
    app: AppName
    options: KubernetesOptions
    rank0_env: str
    version: tuple[int, int]
    record: AppAnnotation
    files: RequestFiles

    @property
    def labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/managed-by": "phalanx",
            names.APP: self.app.name,
            names.SESSION: label(self.record.session),
            names.USER: label(self.record.user),
        }

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.app.name, "namespace": self.app.namespace, "labels": self.labels}

    def service(self) -> dict[str, Any]:
        """Gives every pod a name, before it is ready as well."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                **self.metadata,
                "annotations": {names.RECORD: self.record.to_text()},
            },
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {names.APP: self.app.name},
            },
        }

    def secrets(self) -> Iterator[dict[str, Any]]:
        found = [self._code(), *dict.fromkeys(self._project(r.name) for r in self.record.roles)]
        for packed in found:
            if packed is not None:
                yield from packed.objects(self.metadata)

    def _code(self) -> PackedFiles | None:
        code = self.files.code
        return None if code is None else PackedFiles(f"{self.app.name}-phalanx", code)

    def _project(self, role: str) -> PackedFiles | None:
        data = self.files.projects.get(role)
        if data is None:
            return None
        # Roles often have the same.
        number = list(dict.fromkeys(self.files.projects.values())).index(data)
        return PackedFiles(f"{self.app.name}-project-{number}", data)

    def jobs(self, role: Role, plan: ImagePlan | None) -> Iterator[dict[str, Any]]:
        part = next(part for part in self.record.roles if part.name == role.name)
        if part.is_indexed:
            yield self._job(role, part, None, plan)
        else:
            for number in range(role.num_replicas):
                yield self._job(role, part, number, plan)

    def _job(
        self, role: Role, part: RoleAnnotation, number: int | None, plan: ImagePlan | None
    ) -> dict[str, Any]:
        replica = REPLICA_ID if number is None else str(number)
        meant = Values(".", self.app.name, replica, self.rank0_env).apply(role, str(self.app))
        own = {
            **self.labels,
            names.ROLE: part.word,
            names.ATTEMPT: "0",
            **({} if number is None else {names.REPLICA: str(number)}),
        }
        name = job_name(self.app.name, part.word, number, 0)
        pods = PodMaker(
            self.app.name,
            self.options,
            env_secret(self.app.name),
            self.rank0_env,
            self._code(),
            self.files.template,
        )
        spec: dict[str, Any] = {
            **self._retries(part, number, is_elastic=role.min_replicas is not None),
            "template": pods.template_of(
                meant,
                labels=own,
                first_host=f"{first_hostname(self.app.name, part, 0)}.{self.app.name}",
                hostname=None if number is None else f"{part.word}-{number}",
                project=self._project(role.name),
                image=role.image if plan is None else f"{plan.repository}:latest",
            ),
        }
        if self.options.ttl is not None:
            spec["ttlSecondsAfterFinished"] = round(self.options.ttl)
        labels = dict(own)
        if self.options.queue and self.options.gang_scheduler is None:
            labels[_QUEUE] = self.options.queue
            if self.version >= _SUSPEND:
                spec["suspend"] = True  # until Kueue lets it begin
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**self.metadata, "name": name, "labels": labels},
            "spec": spec,
        }

    def _retries(
        self, part: RoleAnnotation, number: int | None, *, is_elastic: bool
    ) -> dict[str, Any]:
        """What the cluster does by itself when a pod fails."""
        alone = part.max_retries if part.policy is RetryPolicy.REPLICA else 0
        spec: dict[str, Any] = {"backoffLimit": alone}
        if number is None:
            spec = {
                "completionMode": "Indexed",
                "completions": part.replicas,
                "parallelism": part.replicas,
                **({"backoffLimitPerIndex": alone, "maxFailedIndexes": 0} if alone else spec),
            }
        if self.version >= _FAILURE_POLICY:
            # Preempted, drained, evicted: no fault of the program's.
            rules: list[dict[str, Any]] = [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
            if is_elastic:
                # A pod that somebody deletes has no such condition; the others go on meanwhile.
                terminated = {"operator": "In", "values": [128 + signal.SIGTERM]}
                rules.append({"action": "Ignore", "onExitCodes": terminated})
            spec["podFailurePolicy"] = {"rules": rules}
        return spec


def first_hostname(app: str, part: RoleAnnotation, attempt: int) -> str:
    """The name of a role's first pod: Indexed Jobs name theirs by themselves."""
    if part.is_indexed:
        return f"{job_name(app, part.word, None, attempt)}-0"
    return f"{part.word}-0"

"""The pod of a replica. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.ranks import REPLICA as REPLICA_VARIABLE
from phalanx._schedulers.authoring import UNSAID_MEMORY
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.apps.archive import PackedFiles
from phalanx._schedulers.kubernetes.manifest import MAIN, merged
from phalanx._schedulers.kubernetes.options import KubernetesOptions, quantity
from phalanx._schedulers.replicas.request import ROLE, with_python
from phalanx._specs import Role
from phalanx._specs.instances import INSTANCE_TYPE
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount
from phalanx._worker.program import ERROR_FILE

MESSAGE_PATH = "/dev/termination-log"
"""What is written there is part of the pod's status when it has ended."""
ROOT = "/opt/phalanx"
"""A directory of the pod's own."""
REPLICA_ID = "PHALANX-5f0c8e1d-REPLICA-ID"
"""Stands for a replica's number where a pod is one of many that are alike."""

_START = """\
unpack() {
  mkdir -p "$2"
  if command -v tar >/dev/null 2>&1 && command -v gzip >/dev/null 2>&1; then
    cat "$1"/piece-* | gzip -dc | tar -xof - -C "$2"
  else
    PYTHON -c 'import glob, io, sys, tarfile
data = b"".join(open(name, "rb").read() for name in sorted(glob.glob(sys.argv[1] + "/piece-*")))
tarfile.open(fileobj=io.BytesIO(data)).extractall(sys.argv[2])' "$1" "$2"
  fi || { echo "phalanx: cannot unpack $1: the image needs tar and gzip, or PYTHON" >&2; exit 126; }
}
"""
_START_CODE = f"""\
unpack {ROOT}-files/code {ROOT}/code
export PYTHONPATH="{ROOT}/code${{PYTHONPATH:+:$PYTHONPATH}}"
"""
_START_PROJECT = f"""\
[ "$PWD" != / ] && [ -w . ] || {{ mkdir -p {ROOT}/workspace; cd {ROOT}/workspace; }}
unpack {ROOT}-files/project .
"""
_START_PROGRAM = 'exec "$@"\n'


@dataclass(frozen=True)
class PodMaker:
    """What all pods of an app have in common."""

    name: str
    options: KubernetesOptions
    env_secret: str
    rank0_env: str
    code: PackedFiles | None
    template: Mapping[str, Any] = field(default_factory=dict)
    """The user's own."""

    def template_of(
        self,
        role: Role,
        *,
        labels: Mapping[str, str],
        first_host: str,
        hostname: str | None,
        project: PackedFiles | None,
        image: str,
    ) -> dict[str, Any]:
        """A pod template; with `REPLICA_ID` in the role, one for an Indexed Job."""
        volumes, mounts = self._files(role, project)
        container: dict[str, Any] = {
            "name": MAIN,
            "image": image,
            "imagePullPolicy": self.options.pull_policy,
            "command": self._command(role, project),
            "env": self._env(role, first_host, is_indexed=hostname is None),
            # What only some may see, and what differs each time.
            "envFrom": [{"secretRef": {"name": self.env_secret, "optional": True}}],
            "resources": _resources(role, self.options),
            "volumeMounts": mounts,
            "terminationMessagePath": MESSAGE_PATH,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        if role.port_map:
            ports = sorted(set(role.port_map.values()))
            container["ports"] = [{"containerPort": port} for port in ports]
        if any(isinstance(mount, DeviceMount) for mount in role.mounts):
            container["securityContext"] = {"privileged": True}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "subdomain": self.name,
            **({} if hostname is None else {"hostname": hostname}),
            # The program is not process 1: signals have their usual effect, orphans are buried.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": max(1, round(self.options.stop_grace)),
            "containers": [container],
            "volumes": volumes,
            **self._placement(role),
        }
        annotations = {}
        if self.options.queue and self.options.gang_scheduler == "volcano":
            annotations["scheduling.volcano.sh/queue-name"] = self.options.queue
        metadata = {
            "labels": dict(labels),
            **({"annotations": annotations} if annotations else {}),
        }
        return merged({"metadata": metadata, "spec": spec}, self.template)

    def _command(self, role: Role, project: PackedFiles | None) -> list[str]:
        argv = with_python((role.entrypoint, *role.args), self.options.python)
        words = [_word(word) for word in argv]
        if self.code is None and project is None:
            return words
        script = _START.replace("PYTHON", self.options.python)
        script += _START_CODE if self.code is not None else ""
        script += _START_PROJECT if project is not None else ""
        return ["sh", "-c", _word(script + _START_PROGRAM), "phalanx", *words]

    def _env(self, role: Role, first_host: str, *, is_indexed: bool) -> list[dict[str, Any]]:
        field_path = (
            f"metadata.annotations['{names.INDEX}']"
            if is_indexed
            else f"metadata.labels['{names.REPLICA}']"
        )
        # First, since others may refer to it.
        found: list[dict[str, Any]] = [
            {"name": REPLICA_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}
        ]
        plain = {
            ROLE: role.name,
            self.rank0_env: first_host,
            ERROR_FILE: MESSAGE_PATH,
            "PYTHONUNBUFFERED": "1",
            **self.options.env,
            **role.env,
        }
        found += [
            {"name": name, "value": _word(value)}
            for name, value in plain.items()
            if name != REPLICA_VARIABLE
        ]
        return found

    def _placement(self, role: Role) -> dict[str, Any]:
        options = self.options
        selector = dict(options.node_selector)
        kind = role.resource.capabilities.get(INSTANCE_TYPE)
        if isinstance(kind, str):
            selector.setdefault(INSTANCE_TYPE, kind)
        found: dict[str, Any] = {
            "nodeSelector": selector,
            "tolerations": options.toleration_specs,
            "serviceAccountName": options.service_account,
            "priorityClassName": options.priority_class,
            "schedulerName": options.gang_scheduler,
            "imagePullSecrets": [{"name": options.image_secret}] if options.image_secret else None,
        }
        return {name: value for name, value in found.items() if value}

    def _files(
        self, role: Role, project: PackedFiles | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        limit = {"sizeLimit": quantity(self.options.shm_size)} if self.options.shm_size else {}
        volumes: list[dict[str, Any]] = [
            {"name": "shm", "emptyDir": {"medium": "Memory", **limit}},
            {"name": "phalanx", "emptyDir": {}},
        ]
        mounts: list[dict[str, Any]] = [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 of a container
            {"name": "phalanx", "mountPath": ROOT},
        ]
        for name, packed in (("code", self.code), ("project", project)):
            if packed is not None:
                volumes.append(packed.volume(name))
                path = f"{ROOT}-files/{name}"
                mounts.append({"name": name, "mountPath": path, "readOnly": True})
        for number, (volume, mount) in enumerate(_mounts(role)):
            own = f"mount-{number}"
            volumes.append({"name": own, **volume})
            mounts.append({"name": own, **mount})
        return volumes, mounts


def _mounts(role: Role) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for mount in role.mounts:
        match mount:
            case BindMount(source, target, read_only):
                yield {"hostPath": {"path": source}}, _mount(target, read_only=read_only)
            case VolumeMount(source, target, read_only):
                claim = {"claimName": source, **({"readOnly": True} if read_only else {})}
                yield {"persistentVolumeClaim": claim}, _mount(target, read_only=read_only)
            case DeviceMount(source, target, permissions):
                yield (
                    {"hostPath": {"path": source}},
                    _mount(target, read_only="w" not in permissions),
                )


def _mount(target: str, *, read_only: bool) -> dict[str, Any]:
    return {"mountPath": target, **({"readOnly": True} if read_only else {})}


def _resources(role: Role, options: KubernetesOptions) -> dict[str, Any]:
    resource = role.resource
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if resource.cpu > 0:
        requests["cpu"] = f"{round(resource.cpu * 1000)}m"
    if resource.memMB > 0 and resource.memMB != UNSAID_MEMORY:
        requests["memory"] = limits["memory"] = f"{resource.memMB}Mi"
    devices = {options.gpu_resource: max(0, resource.gpu), **resource.devices}
    for name, count in devices.items():
        if count > 0:
            # Devices cannot be shared: both must be there, and the same.
            requests[name] = limits[name] = str(count)
    found = {"requests": requests, "limits": limits}
    return {name: value for name, value in found.items() if value}


def _word(text: str) -> str:
    """A word that comes out of the kubelet as it is: `$(NAME)` would be replaced."""
    return text.replace("$", "$$").replace(REPLICA_ID, f"$({REPLICA_VARIABLE})")

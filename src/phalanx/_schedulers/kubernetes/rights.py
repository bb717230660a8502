"""The rights that a user needs in a namespace. Pure."""

from __future__ import annotations

RIGHTS = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: phalanx
rules:
  - apiGroups: [""]
    resources: [services]
    verbs: [get, list, create, patch, delete]
  - apiGroups: [batch]
    resources: [jobs]
    verbs: [get, list, create, patch, delete]
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, create, patch, delete]
  - apiGroups: [""]
    resources: [pods/log]
    verbs: [get]
  - apiGroups: [""]
    resources: [pods/exec]  # functions in pods
    verbs: [get, create]
  - apiGroups: [""]
    resources: [secrets]  # they are never read
    verbs: [create, delete]
  - apiGroups: [""]
    resources: [events]  # why a Job has no pods, such as a quota
    verbs: [list]
"""
"""A Role, as `kubectl apply -f -` takes it; docs/kubernetes.md has the same."""

"""`kubernetes`: apps as Jobs of a cluster.

| module | |
|---|---|
| `connection` | the way to an API server: kubeconfig and context, or the pod's own account |
| `cluster` | all requests to it, and what its complaints mean |
| `options` | what a user can ask for, checked |
"""

"""`kubernetes`: apps as Jobs of a cluster.

| module | |
|---|---|
| `connection` | the way to an API server: kubeconfig and context, or the pod's own account |
| `cluster` | all requests to it, and what its complaints mean |
| `options` | what a user can ask for, checked |
| `lease` | pods as hosts for launches |
| `lent_pods` | pure: what they are made of, and how they stand |
| `exec_stream` | a program: the way into a pod |
| `credentials` | what it needs to know of the API server |
| `guard` | a program: deletes the pods of a launcher that was killed |
"""

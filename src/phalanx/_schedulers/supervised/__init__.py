"""Schedulers whose apps run under a supervisor of ours, on this machine: `local_cwd` and `ssh`.

`lifecycle` (pure) decides, `supervisor` carries out, `replicas` and `ssh_replicas` start.
"""

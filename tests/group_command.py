"""Runs a command for each of some hosts at once, as a scheduler's would: group_command PLACE HOSTS COMMAND…

Each gets all of our stdin and ends with us; what they print is ours. In the directory PLACE, `log` says that
it began, and `sent` has what was sent to the hosts. They begin once `go` is there, if `wait` is. A host NAME cannot
connect to anybody while `cut-off-NAME` is there.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

place, hosts, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]


def die_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


with open(f"{place}/log", "a") as file:
    file.write(f"together {' '.join(hosts)}\n")
sent = b""
while not sent.endswith(b"}\n"):
    sent += os.read(0, 1 << 16)
with open(f"{place}/sent.new", "wb") as file:
    file.write(sent)
os.rename(f"{place}/sent.new", f"{place}/sent")
while os.path.exists(f"{place}/wait") and not os.path.exists(f"{place}/go"):
    time.sleep(0.01)
children = []
for host in hosts:
    cut_off = ["unshare", "-rn"] if os.path.exists(f"{place}/cut-off-{host}") else []
    environ = {**os.environ, "PIPE_HOST": host, "PIPE_GROUP": sys.argv[2]}
    children.append(
        subprocess.Popen(
            [*cut_off, *command], env=environ, stdin=subprocess.PIPE, preexec_fn=die_with_us
        )
    )


for child in children:
    child.stdin.write(sent)
    child.stdin.flush()
for child in children:
    child.wait()

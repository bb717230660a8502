"""`limit.py N [RUNS]`: what cannot be beaten: import torch once, fork N, all-reduce, end.

With RUNS, prints the seconds of each but for the import.
"""

import json
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist


def run(n: int) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    children = []
    for rank in range(-1, n):
        child = os.fork()
        if child:
            children.append(child)
        elif rank < 0:
            store = dist.TCPStore(
                "127.0.0.1",
                0,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
            signal.pause()
        else:
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
            value = torch.ones(1)
            dist.all_reduce(value)
            os._exit(value.item() != n)
    listening.close()
    server, *workers = children
    assert not any(os.waitpid(worker, 0)[1] for worker in workers)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)


seconds = []
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    began = time.perf_counter()
    run(int(sys.argv[1]))
    seconds.append(time.perf_counter() - began)
print(json.dumps({"runs": seconds}))
sys.stdout.flush()
os._exit(0)

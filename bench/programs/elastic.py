"""For torchrun: the same work."""

import torch.distributed as dist
from _work import work

dist.init_process_group("gloo")
work()
dist.destroy_process_group()

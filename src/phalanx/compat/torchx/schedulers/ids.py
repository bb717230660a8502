"""TorchX's ids that are new each time."""

from phalanx.schedulers.ids import get_len_random_id, make_unique, random_id, random_uint64

__all__ = ["get_len_random_id", "make_unique", "random_id", "random_uint64"]

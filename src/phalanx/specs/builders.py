"""Functions that make apps, handles and mounts of texts, in the module where TorchX has them."""

from phalanx._core.lazy import loader
from phalanx._runner.builders import materialize_appdef
from phalanx._runner.handles import make_app_handle
from phalanx._specs import parse_mounts

__all__ = ["make_app_handle", "materialize_appdef", "parse_mounts"]

__getattr__ = loader(
    __name__, {}, {"parse_args": "use materialize_appdef, which parses and calls the component"}
)

"""TorchX's helpers that other programs use."""

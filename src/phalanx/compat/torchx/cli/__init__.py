"""TorchX's `cli`."""

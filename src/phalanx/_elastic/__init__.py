"""One host of an app whose hosts meet by themselves: agents as TorchElastic has them, torchrun."""

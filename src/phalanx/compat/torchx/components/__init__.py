"""TorchX's components: ours, whose apps may be changed."""

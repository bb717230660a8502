"""What plugins and programs written for TorchX expect of a scheduler."""

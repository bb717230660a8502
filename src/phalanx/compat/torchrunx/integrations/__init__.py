"""Where torchrunx has its helpers for argparse and Lightning."""

"""What needs torch: the round's store and the process group. Loaded by name, in workers."""

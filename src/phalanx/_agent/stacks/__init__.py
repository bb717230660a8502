"""Where workers are: their stacks, native frames and last collectives. No round."""

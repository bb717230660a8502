"""Many calls of one function: who gets which item, how each is run, and what is kept of it."""

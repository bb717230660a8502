"""A call that runs as an app of a scheduler's."""

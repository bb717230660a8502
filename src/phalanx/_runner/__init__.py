"""Apps onto schedulers: `runner` is the front."""

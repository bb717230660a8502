"""Who takes part in a round, and when it ends. `coordinator` decides; others host it."""

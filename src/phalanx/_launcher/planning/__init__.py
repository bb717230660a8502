"""From what the user asked for to a plan. Starts no process."""

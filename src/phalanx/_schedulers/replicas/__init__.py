"""Replicas as every scheduler has them: requests, what follows from an end, logs, errors."""

"""Schedulers: `scheduler` is the interface, one module for each of ours, and what they share."""

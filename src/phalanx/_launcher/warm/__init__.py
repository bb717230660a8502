"""Agents that outlast an app, so that the next one starts in the time of a fork."""

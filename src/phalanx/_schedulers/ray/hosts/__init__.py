"""Nodes as hosts for launches, and the command that leads to one. No app."""

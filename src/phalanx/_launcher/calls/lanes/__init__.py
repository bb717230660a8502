"""Calls on this machine: an agent that makes one call after another."""

"""Pods as hosts for launches, and what deletes those of a launcher that was killed. No app."""

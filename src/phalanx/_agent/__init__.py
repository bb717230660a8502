"""The agent: the process on each host that starts workers, follows them, and ends them.

It hears from a channel and never knows who is at the other end, nor who placed it.
"""

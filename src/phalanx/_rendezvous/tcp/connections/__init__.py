"""Sockets between hosts: who may come, who stays, and what passes on to the store."""

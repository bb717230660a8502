"""Agents as the launcher sees them: what they are sent, and what may come from them."""

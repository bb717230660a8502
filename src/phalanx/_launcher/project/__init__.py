"""The user's files: which are sent to hosts, and which come back."""

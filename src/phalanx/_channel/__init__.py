"""Channels of frames, proof of a shared secret, file transfer. No frame's meaning."""

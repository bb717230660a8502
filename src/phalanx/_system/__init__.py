"""Processes, addresses, devices and directories of the machine it runs on."""

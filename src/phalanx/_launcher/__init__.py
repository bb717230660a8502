"""Functions onto hosts: `launcher` is the front, the packages are its rooms."""

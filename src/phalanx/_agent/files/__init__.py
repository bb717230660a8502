"""Files on this host: the project, the pickled functions, what workers write. No worker."""

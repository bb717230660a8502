"""A cluster as it is seen from outside: its dashboard, its jobs, the packages that it keeps."""

"""One app while it runs. Knows no ssh: it has channels to agents."""

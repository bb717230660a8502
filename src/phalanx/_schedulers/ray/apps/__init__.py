"""Apps as jobs of a cluster: what is submitted, and how it stands. No lease."""

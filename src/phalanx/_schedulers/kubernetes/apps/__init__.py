"""Apps as objects of a cluster: made of a request, seen again, acted on. No lease."""

"""The API server: the way to it, all requests to it, a command in a pod. No app, no launch."""

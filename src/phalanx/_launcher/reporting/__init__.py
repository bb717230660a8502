"""What is said of an app: how its ranks stand, what went wrong, what came of it."""

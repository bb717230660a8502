"""What a worker has put in place for the user's code before it runs."""

"""Schedulers: `scheduler` is the interface; a package for each kind; and what they share."""

"""The rendezvous over TCP: one of its hosts decides, and another does if it is lost."""

"""Hosts that meet by themselves over TCP: one of them decides, and another does if it is lost."""

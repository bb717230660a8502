"""The command line of torchrun: its flags as data, its words, and what they mean together."""

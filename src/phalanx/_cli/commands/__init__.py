"""The commands, one module for each: it prints and never decides."""

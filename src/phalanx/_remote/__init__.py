"""Programs that are sent to another host as text and run there first. Each stands alone."""

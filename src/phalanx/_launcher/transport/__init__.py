"""Ways to reach a host and to start an agent there. Knows no plan and no frame's meaning."""

"""What runs on the cluster, or within a Ray program: nothing of how it was submitted."""

"""Rounds on this host: workers, what they print, and who has hung. No launcher."""

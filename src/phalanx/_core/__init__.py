"""Data and pure functions that every layer uses: rounds, ranks, clocks, limits, text. No I/O."""

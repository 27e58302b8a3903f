"""Real processes, broken on purpose: `make chaos`."""

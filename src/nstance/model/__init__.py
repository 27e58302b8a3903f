"""Nouns: what Nstance talks about. Frozen values without behavior that needs the world."""

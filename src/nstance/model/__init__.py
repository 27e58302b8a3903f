"""Nouns: what Nstance talks about. Frozen values without behaviour that needs the world."""

"""The values that Nstance talks about: frozen, without I/O."""

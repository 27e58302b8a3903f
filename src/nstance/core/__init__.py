"""Decisions as pure functions: no clock, no randomness, no I/O, no logging."""

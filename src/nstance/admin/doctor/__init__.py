"""Checks of running shards and their storage, each with what to do about what it finds."""

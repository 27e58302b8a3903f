"""Connections to the shards, and the identity that they are opened with."""

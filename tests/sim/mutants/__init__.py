"""Deliberate defects. A test suite that lets one of them live does not test what it says."""

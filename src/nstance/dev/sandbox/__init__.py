"""Sandboxes that run userdata as a VM would: a root of their own, processes of their own, never the host's files."""

"""The work of the shard commands: what is asked of running servers."""

"""The work of the shard commands: calls to the operator API and how their results are shown."""

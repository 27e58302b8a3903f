"""`nstance-admin serve`: the shard commands as an HTTP API, for programs and browsers."""

"""Version 1 of the HTTP API: all that the shard commands can do, and reading the bucket."""

"""What the cluster commands do: storage and secrets directly, without a server."""

"""The work of the cluster commands, on object storage and secrets."""

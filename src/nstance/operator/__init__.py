"""The operator: Cluster API resources on one side, the shards on the other."""

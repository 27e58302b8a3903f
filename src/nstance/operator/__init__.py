"""The Kubernetes operator: Cluster API resources on one side, the shards of one Nstance cluster on the other."""

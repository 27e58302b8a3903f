"""Controllers: each keeps one kind of Kubernetes object in line with the shards."""

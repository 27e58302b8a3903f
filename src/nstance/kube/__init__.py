"""A Kubernetes client, and what a controller needs around it."""

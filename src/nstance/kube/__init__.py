"""Kubernetes: the door to its API, and what a controller needs around it."""

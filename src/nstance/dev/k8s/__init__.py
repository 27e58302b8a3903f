"""dev-k8s: a Kubernetes API server over JSON files, for development on one machine."""

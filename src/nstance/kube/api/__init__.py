"""The semantics of a Kubernetes API server in memory, without HTTP and disk. `kube.memory` and dev-k8s use it."""

"""An API server's semantics over a dictionary: no HTTP, no disk. `kube.memory` and dev-k8s are fronts of it."""

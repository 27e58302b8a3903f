"""HTTP listeners: probes, metrics and the validating webhook."""

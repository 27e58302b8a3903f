"""Logs and metrics. Nothing is imported here: the agent uses `telemetry.logs` and never loads the metrics library."""

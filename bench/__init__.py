"""Benchmarks: what `make bench` measures. One file a subject; each yields rows for the table of docs/benchmarks.md."""

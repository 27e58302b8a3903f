"""The command line: flags, help and examples. Nothing slow is imported outside a function, so that help and completion
answer at once; the work is in the neighboring packages."""

"""The command line's words: flags, help, examples. Nothing here imports anything slow outside a function, so that help
and completion answer at once; the work is in the neighbouring packages."""

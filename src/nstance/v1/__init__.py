"""Generated from proto/nstance/v1 by `make proto`."""

"""Why things happen. Pure: facts in, decisions out; no clock, no chance, no I/O."""

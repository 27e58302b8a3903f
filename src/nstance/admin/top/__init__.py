"""`nstance-admin top`: the fleet on a terminal. `state` and `pages` are pure; `screen` and `program` do the rest."""

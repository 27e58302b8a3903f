"""`python -m nstance.dev`: what `make dev` starts."""

from nstance.dev.run import main

main()

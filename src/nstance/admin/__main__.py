"""`python -m nstance.admin`."""

from nstance.admin.main import main

main()

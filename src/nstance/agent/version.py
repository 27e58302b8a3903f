"""The agent's version, here and not asked of the installed package: that look-up costs 2 MB and 20 ms at each start."""

VERSION = "0.1.0"

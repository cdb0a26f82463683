"""Door: what one may ask the daemon, as values, and the one table that server, client and documentation come from.

Touches nothing.  Importing it is cheap on purpose: `xpucachectl` does so at every start.
"""

"""The program that makes, reads and takes in bundles, beside the daemon: ``xpucachectl bundle`` starts it.

It has a process of its own, because it needs libraries that neither the daemon nor the command shall load, and because
what it reads was made by others.  It has the rights of whoever typed the command, and needs no daemon.
"""

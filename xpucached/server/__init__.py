"""Door: HTTP on a unix socket.  Turns requests into calls of the service, and its values into answers.

`unix_sockets` gives the listening sockets, `http_listener` serves on them, `connection` bounds what a client may
cost, `routes` answers.  The loop and the signals belong to the daemon.
"""

"""Door: the daemon's values as tables and sentences for people.  Pure: values in, text out.

What comes from caches and file names is never trusted: control characters are shown, not sent to the terminal.
"""

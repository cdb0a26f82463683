"""Attacks: one file for each, carried out by two real users against what we run.  ``conftest`` gives the users."""

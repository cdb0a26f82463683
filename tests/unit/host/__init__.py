"""Tests of the machine's looks that start no process."""

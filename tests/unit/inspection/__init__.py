"""Tests of what is read out of programs, wheels and environments; nothing is loaded."""

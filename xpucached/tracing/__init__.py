"""Watching a program that is no model, as it runs: what it compiles, and in which caches that is kept."""

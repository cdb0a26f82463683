"""Bring a model to life: a function for each loader, and the table of them."""

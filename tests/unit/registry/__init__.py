"""The client of registries."""

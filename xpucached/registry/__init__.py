"""The client of OCI registries: references, accounts, HTTP with bounds.  Nothing that a registry says is believed."""

"""The format of bundles: an OCI image layout in a folder or a tar file, made the same each time, read with care."""

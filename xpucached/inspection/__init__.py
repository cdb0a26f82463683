"""What files, wheels and environments bring for devices: read, never loaded, and judged as the driver judges it."""

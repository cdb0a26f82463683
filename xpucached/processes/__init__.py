"""Act: the programs that this package starts, and how; nothing else starts one."""

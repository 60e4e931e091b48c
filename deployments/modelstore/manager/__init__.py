"""The manager's process: sockets, threads and tiers around the core."""

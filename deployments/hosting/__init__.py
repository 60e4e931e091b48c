"""Several models in one replica; new versions load while the replica serves."""

"""Several models in one replica, and new versions of them, loaded while the replica serves."""

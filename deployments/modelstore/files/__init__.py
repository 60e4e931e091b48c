"""Model files: publishing, reading, verification, and fetching from a remote."""

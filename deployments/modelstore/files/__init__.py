"""The files of models: published, read, checked, and fetched from a remote."""

"""A pipeline as a service: its config file, its HTTP interface, and its Ray Serve application."""

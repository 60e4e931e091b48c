"""A local run: Ray, Serve and HAProxy on this machine, closed to others, and all ended again."""

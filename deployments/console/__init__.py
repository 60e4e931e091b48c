"""The console at ``/sojourn/``: a page that shows a service live, and plans what it might be."""

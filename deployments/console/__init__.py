"""The console at ``/sojourn/``: a page that shows a service live and answers what-if questions."""

"""Sojourn keeps response-time SLAs on Ray Serve with the fewest replicas and the least energy."""

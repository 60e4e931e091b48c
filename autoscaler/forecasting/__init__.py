"""How high demand may rise until a replica ordered now can serve."""

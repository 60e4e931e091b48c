"""How many replicas a demand needs: RAND, percentile sizing, and correction by measurement."""

"""Turn a demand into a number of replicas: response-time models, search, and live correction."""

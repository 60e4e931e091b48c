"""How many replicas: RAND, forecasts, sizing and control. Only `ray_adapter` knows Ray."""

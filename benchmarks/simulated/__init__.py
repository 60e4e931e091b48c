"""Fleets, autoscalers, forecasts and bursts on virtual time, and the simulator's own speed."""

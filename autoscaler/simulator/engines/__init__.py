"""The engine that moves requests through a simulated fleet."""

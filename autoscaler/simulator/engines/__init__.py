"""Two engines that move requests through a simulated fleet, with identical results."""

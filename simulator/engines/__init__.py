"""Two engines that move requests through a simulated fleet and give the same answers."""

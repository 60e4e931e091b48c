"""What commands print and draw: tables of a simulation, and the plot of a policy."""

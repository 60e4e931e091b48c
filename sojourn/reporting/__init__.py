"""The output of commands: tables of a simulation, and the plot of a policy."""

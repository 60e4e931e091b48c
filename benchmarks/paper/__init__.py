"""Tables and figures of the papers reproduced, their theorems checked, and the solvers timed."""

"""Tables and figures of the papers reproduced, and their theorems checked."""

"""Table, figures and claims of the SMDP paper, reproduced."""

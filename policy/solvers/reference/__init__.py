"""Reference solvers on the paper's truncated SMDP, to check the exact solver against."""

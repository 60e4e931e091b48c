"""Numerical methods: Markov chains, Poisson probabilities, quadrature."""

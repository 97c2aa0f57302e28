"""Closed forms: lower bounds, and the bandwidths that benchmarks print."""

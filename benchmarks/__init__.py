"""Benchmarks of collemu against its peers; `make bench` runs them all."""

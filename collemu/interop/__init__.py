"""Formats that other tools read and write."""

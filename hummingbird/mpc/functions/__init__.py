"""Smooth functions as tables and splines."""

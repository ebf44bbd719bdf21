"""Approximations of smooth functions that layers evaluate on shares.

polynomials       tables of polynomials, for protocols that look up
tabulated         sigmoid, tanh, SiLU and GELU as such tables
softmax_tables    e^x and 1/x of a softmax as such tables
splines           linear splines
smooth            quadratic splines
"""

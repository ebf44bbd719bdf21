"""Approximations of smooth functions that layers evaluate on shares.

polynomials       tables of polynomials, for protocols that look up
function_table    the table of any function on an interval
tabulated         layers that look such tables up
softmax_tables    e^x and 1/x of a softmax as such tables
splines           linear splines
smooth            quadratic splines
"""

"""Layers as products of polynomials: which coefficient holds each value and each weight, from shapes alone.

layer     a convolution or a linear layer, described by its shapes
layout    several channels of one or more images in a polynomial
blocks    how many channels and outputs share a polynomial
planes    the coefficient of each value of an image: phases, tiles and gaps
"""

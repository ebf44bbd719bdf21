"""Private layers: modules that compute one operation of a net on shares, and know their scales, range and price.

layer                        the base class, local layers, lifts
linear, products             products with weights, public and private; products of private values, attention
constants                    public numbers, inputs and tables beside the net's weights
averaging                    means and interpolation: sums and public factors
arithmetic, comparing        the language of formulas, and the base of layers that compare
activations, selecting       ReLU and splines; maxima, absolute values and comparisons as data
softmax, softmax_in_range    softmax and argmax; softmax of rows in a known range
weighted_mean                attention that divides by the sum of the softmax after the product
norms, norms_in_range        layer, group and instance norms; norms of rows in a known range
moments                      norms, variances and deviations as results; rows of length 1, cosines
"""

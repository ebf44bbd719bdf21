"""Private layers: modules that compute one operation of a net on shares, and know their scales, range and price.

layer, weights                       the base class, local layers, lifts; public and private weights
linear, products, attention          products with weights, and products of private values
constants, embedding                 public numbers and tables beside the net's weights
averaging, resizing                  means and interpolation: sums and public factors
arithmetic, comparing                the language of formulas, and the base of layers that compare
activations, pooling, selecting      ReLU and splines; maxima; absolute values and comparisons as data
softmax, softmax_in_range, hidden    softmax and argmax; softmax of rows in a known range; masks of attention
weighted_mean                        attention that divides by the sum of the softmax after the product
norms, norms_in_range                layer, group and instance norms; norms of rows in a known range
"""

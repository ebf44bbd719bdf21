"""Operations of nets, and the rules by which torch's modules, functions and methods become steps.

op.py                the record of one operation, `Op`, from which all tables of the graph follow
vocabulary.py        all operations and rules, by torch's names
net.py               inputs, outputs, layers that do nothing
linear.py            convolutions, products with constant matrices
norms.py             batch, layer, group, instance and root-mean-square norms
written_out.py       norms and other divisions by roots, as nets write them out
moments.py           norms of vectors, variances and deviations as results, rows of length 1, cosines
activations.py       activations, softmax, argmax
pools.py             maximum and average pools
arithmetic.py        sums, products, reductions
select.py            maxima of two values, comparisons, selection
attention.py         products of two values, masks, attention; encoder.py: torch's transformer encoder
recurrent.py         RNN, LSTM and GRU, and their cells, unrolled
packed.py            sequences of different lengths in one tensor
shapes.py            values moved, selected or repeated; resize.py: images resized and rearranged
public.py            public values, and rows of tables
functions.py         smooth functions of one value, and several steps that are one such function
elementwise.py       torch's other elementwise functions, for plain values only
batch_rules.py       rules for the batch's dimension
dimension_rules.py   rules for ranks
"""

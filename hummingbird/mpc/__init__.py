"""Inference on additive shares: N parties compute a net's layers, with correlated randomness from a dealer.

session/       a run of the parties: how they meet, share tensors, and leave
plan/          a net's plan: private layers, scales, prices, and the loop that runs them
layers/        private layers of a net, on shares
functions/     smooth functions as tables and splines
protocols/     how parties compute one operation on shares
correlations/  requests for correlated randomness, and each party's shares of it
dealer/        the dealer, and stores of material that is dealt in advance
"""

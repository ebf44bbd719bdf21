"""Oblivious transfers between two parties; semi-honest.

cot        correlated transfers, with one offset for all of them
silent     correlated transfers that follow from few of these, and the pool that counts them
base_ot    base transfers, for the set-up of `cot`

Both sides' local work, and the messages as bytes. Callers send them: garbled circuits (hybrid/gc/) get labels by these
transfers, and two parties without a dealer make their material from them (mpc/pair/).
"""

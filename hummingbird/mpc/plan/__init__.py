"""A net's plan: its private layers with their scales and prices, and the loop that runs them.

net              `PrivateNet`: the plan as data, its prices, and the run
builders         the private layer of each canonical step
rounding_plan    scales, valid bits and bounds; where values are rescaled
rewritten        rewrites of a net's steps before the plan
columns          precision of small weights that multiply large inputs
microbatch       slices of a batch
dry_run          requests to the dealer, from a run on zeros
"""

"""A net's plan: its private layers with their scales and prices, and the loop that runs them.

net              `PrivateNet`: the plan as data, and the run
steps            a step of the plan
prices           the price of every step for a shape of the input
depths           which steps run side by side, and share rounds
builders         the private layer of each canonical step
rounding_plan    scales, valid bits and bounds; where values are rescaled
rewritten        rewrites of a net's steps before the plan
columns          precision of small weights that multiply large inputs
microbatch       slices of a batch
dry_run          requests to the dealer, from a run on zeros
"""

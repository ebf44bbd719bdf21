"""Programs that find windows before private inference, on plain tensors of one process: `python -m search.NAME --help`.

find_bits    windows for every layer: HummingBird-eco, or the most accurate ones that a budget pays for
frontier     accuracy against online bytes over several budgets
validate     what a net loses with given windows, and how much room they leave
finetune     trains a net with its windows in place
"""

"""The windows of a net, found by a pure algorithm over `evaluate(config) -> accuracy` (HummingBird, section 4.3).

layers = [ComparingLayer("relu1", 65536, largest=300_000), ComparingLayer("relu2", 16384, largest=90_000)]
eco = search_bits(group_layers(layers, "layer"), evaluate)                       # m = 0: nothing changes
bits = search_bits(group_layers(layers, "layer"), evaluate, budget=8 / 64)       # HummingBird-b

problem.py      what is searched: layers, groups, windows worth a trial
groups.py       groups by layer, block, stage or patterns
objective.py    what an assignment costs: the paper's bits, online bytes, seconds
budget.py       budgets as people write them
evaluator.py    what answers: a plain function, or an object with a cheap first look
journal.py      every answer in a file, which a restarted search replays
questions.py    asking: checks, counts, progress
budgeted.py     the best windows within a budget: uniform windows, the loss of each group, the least sums of losses
                exactly, trials of the best assignments
rounding.py     the third knob: q for each group, for fewer bytes in all
find.py         `search_bits`

Of real nets; these need CrypTen, so they are not loaded from here:

net.py          layers, prices and limits
images.py       validation images, however they come
cached.py       an evaluator that runs only what a window changes
study.py        all of it in one object: `Study(net, images, labels).search(8 / 64)`
bars.py         a study and a search behind progress bars
prepare.py      `prepare(net, loader)`: a search, accuracy on other images, and costs; prepared.py is its result
"""

from hummingbird.window_search.evaluator import Evaluator, Score
from hummingbird.window_search.find import search_bits
from hummingbird.window_search.groups import group_layers
from hummingbird.window_search.objective import Objective, bit_budget, online_bytes, predicted_seconds
from hummingbird.window_search.problem import ComparingLayer, Group
from hummingbird.window_search.questions import Progress

__all__ = [
    "ComparingLayer",
    "Evaluator",
    "Group",
    "Objective",
    "Progress",
    "Score",
    "bit_budget",
    "group_layers",
    "online_bytes",
    "predicted_seconds",
    "search_bits",
]

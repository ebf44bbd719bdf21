"""Search for the windows of a net, by an algorithm that only asks `evaluate(config) -> accuracy` (HummingBird, 4.3).

layers = [ComparingLayer("relu1", 65536, largest=300_000), ComparingLayer("relu2", 16384, largest=90_000)]
eco = search_bits(group_layers(layers, "layer"), evaluate)                       # m = 0: nothing changes
bits = search_bits(group_layers(layers, "layer"), evaluate, budget=8 / 64)       # HummingBird-b

problem.py      the search space: comparing layers, groups of them, windows worth a trial
objective.py    the cost of an assignment: the paper's bits, online bytes or seconds; budgets as text
evaluator.py    evaluators, which score windows; the search's questions to them, and the journal: a file of all answers,
                which a restarted search replays
budgeted.py     the best windows within a budget: uniform windows, the loss of each group, the assignments with the
                least sums of losses, trials of the best of these
rounding.py     the third knob: q for each group, for fewer bytes in all
find.py         `search_bits`

For real nets; these modules need CrypTen, so this package does not import them:

net.py          layers, prices and limits of a net
images.py       validation images from a tensor, a DataLoader, a data set or batches
answers.py      answers of a net: classes, scores, numbers, values, embeddings
cached.py       an evaluator that runs only the layers behind the first changed window
study.py        everything in one object: `Study(net, images, labels).search(8 / 64)`; progress bars
prepare.py      `prepare(net, loader)`: a search, accuracy on other images, and costs; its result, a table and a plot
"""

from hummingbird.window_search.evaluator import Evaluator, Progress, Score
from hummingbird.window_search.find import search_bits
from hummingbird.window_search.objective import Objective, bit_budget, online_bytes, predicted_seconds
from hummingbird.window_search.problem import ComparingLayer, Group, group_layers

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

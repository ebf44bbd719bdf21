"""A trained PyTorch net as a list of steps in one canonical vocabulary: `trace`, `problems`, `run`, `Interpreter`."""

from hummingbird.graph.interpreter import Interpreter
from hummingbird.graph.rewrite.centering import centered
from hummingbird.graph.rewrite.reorder_pool import pools_first
from hummingbird.graph.run import OPS, run, run_all
from hummingbird.graph.saved import SavedNet
from hummingbird.graph.steps import Ref, Step, fingerprint
from hummingbird.graph.trace import problems, trace, unfolded
from hummingbird.graph.unwrap import unwrapped

__all__ = [
    "OPS",
    "Interpreter",
    "Ref",
    "SavedNet",
    "Step",
    "centered",
    "fingerprint",
    "pools_first",
    "problems",
    "run",
    "run_all",
    "trace",
    "unfolded",
    "unwrapped",
]

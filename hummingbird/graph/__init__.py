"""A trained PyTorch net as a list of steps of a closed vocabulary of operations.

From forward() to steps:
    trace.py            `trace`: capture the net, look up each call, fold batch norms; `problems`: why it fails
    capture.py          run forward() once on symbols (torch.fx)
    symbols.py          the symbols, which answer as tensors or refuse
    example.py          the example inputs, and every value's shape and type on them
    example_shapes.py   nets that can be traced with an example only
    batch.py            the size of a batch that may have any size
    scalar_reads.py     parameters that forward() reads as Python numbers
    alias.py            calls that write in place, and tensors that share memory
    unwrap.py           nets inside DataParallel and the like
    build.py, ops/      the steps under construction, and the operations with their rules
    hints.py            what to write in place of a layer without private form
Steps:
    steps.py            `Step`, `Ref`, fingerprints
    interpreter.py      the walk over steps; `run`: their values in plain torch
    rewrite.py          rewrites that keep the results
    time_steps.py       rewrites of recurrent layers, step by step in time
    properties.py       ranks, integers
    rowwise.py          whether images of a batch are independent
    causal.py           chunks of a net that reads a sequence from the front, for text generation
    calls.py            arguments and results of a converted net
    schema.py, step_json.py   checks of steps from a file, and their JSON
    saved.py            steps as a module: `SavedNet`
    live.py             the net itself, call by call, for training with simulated layers
"""

from hummingbird.graph.interpreter import OPS, Interpreter, run, run_all
from hummingbird.graph.rewrite import centered, pools_first
from hummingbird.graph.saved import SavedNet
from hummingbird.graph.steps import Ref, Step, fingerprint
from hummingbird.graph.time_steps import by_time, clamped, input_terms
from hummingbird.graph.trace import problems, trace, unfolded
from hummingbird.graph.unwrap import unwrapped

__all__ = [
    "OPS",
    "Interpreter",
    "Ref",
    "SavedNet",
    "Step",
    "by_time",
    "centered",
    "clamped",
    "fingerprint",
    "input_terms",
    "pools_first",
    "problems",
    "run",
    "run_all",
    "trace",
    "unfolded",
    "unwrapped",
]

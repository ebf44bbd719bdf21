"""The common frame of server programs and client programs.

A server program provides its handlers, its figures and its end: `run_service` listens, prints a line, waits for a
signal, and lets running calls end. A client program provides a connection, a question and its figures: `run_client`
asks with a progress bar, compares with labels, and writes the results.

    run_service("he-server", config, ServiceParts([service.handlers()], service.measure))

Both print.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hummingbird.progress import progress_line
from hummingbird.rpc import options
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.service import Brief, Exchange, Method
from hummingbird.structure import leaf

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from torch import Tensor

_Net = TypeVar("_Net")
_Result = TypeVar("_Result")
_BAR = "{l_bar}{bar}| {n:.0f}/{total} [{elapsed}<{remaining}, {rate_fmt}]"


# Programs that serve --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceParts:
    """The parts in which server programs differ: functions and texts, which `run_service` uses.

    handlers: a dict for each address of the configuration, in order: the methods that it serves, by name. measure:
    called with a registry to add figures to, if the program offers metrics. lines: printed before the line that names
    the addresses. look: called five times a second; the program ends if it returns True, or raises. stopping: called
    when the program is to end, while calls are at work. farewell: called when these calls have ended. close: called
    last, also after a failure. run: if given, it is called in place of printing the lines, becoming ready, and waiting
    for a signal.
    """

    handlers: Sequence[Mapping[str, Method | Exchange | Brief]] = ()
    measure: Callable[[CollectorRegistry], object] = lambda registry: None
    lines: Sequence[str] = ()
    look: Callable[[], object] = lambda: None
    stopping: Callable[[], object] = lambda: None
    farewell: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None
    run: Callable[[], object] | None = None


def run_service(
    name: str,
    config: ServiceConfig,
    parts: ServiceParts | Callable[[ServiceProgram], ServiceParts],
    *,
    second: bool = True,
) -> None:
    """Run a server program until SIGTERM or SIGINT.

    name: of the program. config: addresses, certificates, limits and so on. parts: what this program does, or a
    function that returns it; the function is called once the program handles signals. second: whether a second signal
    ends the process at once. Raises errors of `ServiceProgram`, of `rpc.service.serve`, and of the parts `look` and
    `run`.
    """
    with ExitStack() as ends:
        if isinstance(parts, ServiceParts):
            ends.callback(parts.close)
        with ServiceProgram(name, config, second=second) as program:
            if not isinstance(parts, ServiceParts):
                parts = parts(program)
                ends.callback(parts.close)
            if program.metrics is not None:
                parts.measure(program.metrics.registry)
            for handlers, address in zip(parts.handlers, config.listen, strict=False):
                program.serve(handlers, address)
            ends.callback(parts.farewell)
            try:
                if parts.run is None:
                    _until_told(program, parts)
                else:
                    parts.run()
            finally:
                parts.stopping()


def _until_told(program: ServiceProgram, parts: ServiceParts) -> None:
    """Say that the program serves, print its lines, and return when it is told to end, as by a signal.

    program: its health becomes SERVING. parts: for `lines`, and `look`, which can end the program, too.
    """
    program.ready()
    try:
        print(*parts.lines, program.line, sep="\n", flush=True)
    except BrokenPipeError:  # the process that started this program has ended
        program.stop()

    def look() -> None:
        if parts.look():
            program.stop()

    program.wait(look)


# Programs that ask ----------------------------------------------------------------------------------------------------


def run_client(
    args: argparse.Namespace,
    net: AbstractContextManager[_Net],
    count: int,
    labels: Tensor | None,
    *,
    names: Callable[[_Net], Iterable[str]],
    ask: Callable[[_Net, Callable[..., Any]], Any],
    figures: Callable[[_Net, float], Sequence[str]],
    opening: Callable[[_Net], Sequence[str]] = lambda net: (),
) -> tuple[Any, float]:
    """Ask a net for the results of `count` images; return the results and the seconds that they took.

    Prints figures, and the accuracy if there are labels, and writes the results to the file of --out.
    args: the options of `rpc.options.add_images`. net: a context manager that connects to the net; the functions below
    take the connected net. names: returns the names of the net's results. ask: asks for the results and returns them;
    its second argument is a function, which it calls with numbers of newly finished images. figures: returns lines to
    print afterwards; its second argument is the seconds. opening: returns lines to print before. labels: (n,) or None.
    """
    with net as connected:
        for line in opening(connected):
            print(line)
        options.check_labels(args, [*names(connected)])
        outputs, seconds = timed(count, "image", lambda progress: ask(connected, progress))
        found = figures(connected, seconds)
    for line in found:
        print(line)
    if labels is not None:
        print(options.accuracy(leaf(outputs), labels))
    if args.out is not None:
        options.write_results(args.out, outputs)
    return outputs, seconds


def timed(count: int, unit: str, work: Callable[[Callable[..., Any]], _Result]) -> tuple[_Result, float]:
    """Run `work` under a progress bar of `count` units; return its result and the seconds that it took.

    unit: the name of one unit, such as "image". work: gets one argument, a function that it calls with numbers of newly
    finished units.
    """
    started = time.perf_counter()
    with progress_line(total=count, unit=unit, bar_format=_BAR) as bar:
        result = work(bar.update)
    return result, time.perf_counter() - started

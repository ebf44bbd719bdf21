"""Programs that serve, and programs that ask: what is the same in all of them.

A server program is its handlers, its figures and its end: `run_service` listens, says so, waits for a signal, and lets
calls at work end. A client program is a connection, a question and its figures: `run_client` asks with a progress bar,
compares with labels, and writes the results.

    run_service("he-server", config, ServiceParts([service.handlers()], service.measure))

They print, since programs do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry

from hummingbird.rpc import options
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.service import Brief, Exchange, Method
from hummingbird.structure import leaf

if TYPE_CHECKING:
    from torch import Tensor

_Net = TypeVar("_Net")
_Result = TypeVar("_Result")
_BAR = "{l_bar}{bar}| {n:.0f}/{total} [{elapsed}<{remaining}, {rate_fmt}]"


# Programs that serve --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceParts:
    """The parts of a server program that are its own.

    handlers: the methods at each address of the configuration, in its order. measure: adds figures to the program's
    metrics. lines: printed before the line that says that it listens. look: called five times a second; the program
    ends where it returns True, or raises. stopping: called when the program is told to end, while calls are at work.
    farewell: called when they have ended. close: called last, also after a failure.
    run: in place of the lines, the wait for a signal, and the word that the program is ready.
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
    """Serve until SIGTERM or SIGINT. parts: of the program, or what makes them once signals are the program's.

    second: see `ServiceProgram`. Raises its errors, those of `rpc.service.serve`, and those of `look` and `run`.
    """
    with ExitStack() as ends:
        if isinstance(parts, ServiceParts):
            ends.callback(parts.close)
        with ServiceProgram(name, config, second=second) as program:
            if not isinstance(parts, ServiceParts):
                parts = parts(program)
                ends.callback(parts.close)
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
    """Say that the program listens, and wait until it is told to end."""
    program.ready()
    try:
        print(*parts.lines, program.line, sep="\n", flush=True)
    except BrokenPipeError:  # who started this program is gone
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
    """Ask a net for the results of `count` images, and the seconds that it took; prints figures, and the accuracy where
    there are labels, and writes the results. args: of `rpc.options.add_images`.

    names: of the net's results. ask: the question; it tells of images that are done. figures, opening: lines to print
    after it, with the seconds, and before it.
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
    """The result of some work, and its seconds, under a progress bar. work: tells how many of `count` are done."""
    from tqdm import tqdm

    started = time.perf_counter()
    with tqdm(total=count, unit=unit, leave=False, bar_format=_BAR) as bar:
        result = work(bar.update)
    return result, time.perf_counter() - started

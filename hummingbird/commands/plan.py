"""`plan`: the capacity of a private-inference service on some machines, and the least machines that meet a goal."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hummingbird.capacity import quantities, solving
from hummingbird.capacity.arrivals import Arrivals, Gaps
from hummingbird.capacity.engines import run
from hummingbird.capacity.quantities import shown_bytes, shown_rate, shown_seconds
from hummingbird.capacity.result import HostCost, Result, cost_of
from hummingbird.capacity.service import Hosts, Service
from hummingbird.capacity.service_json import to_text
from hummingbird.commands import output, plan_service
from hummingbird.commands.output import check_writable, write_json, write_together
from hummingbird.commands.plan_load import add_load, arrivals_of, goal_of, needed, options_of, scaled
from hummingbird.commands.plan_service import add_service, service_of
from hummingbird.commands.program import add_command
from hummingbird.errors import InputError
from hummingbird.pictures import INK, picture
from hummingbird.progress import progress_line
from hummingbird.rpc.options import count, positive
from hummingbird.table import text_table

# `plan sweep`: figures of a service for several values of one input --------------------------------------------------

LATENCIES = ("latency_mean", "p50", "p95", "p99")
Change = Callable[[Service, Arrivals, Any], tuple[Service, Arrivals]]


def _host(name: str) -> Change:
    return lambda service, arrivals, value: (service.at(Hosts(**{name: value})), arrivals)


def _own(name: str) -> Change:
    return lambda service, arrivals, value: (dataclasses.replace(service, **{name: value}), arrivals)


def _megabits(value: float) -> str:
    return f"{value / 1e6:g} Mb/s"


# For each input: its parser, its text, and the function that changes it.
INPUTS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str], Change]] = {
    "rate": (quantities.rate, shown_rate, lambda service, arrivals, value: (service, scaled(arrivals, value))),
    "store": (quantities.size, shown_bytes, _host("store")),
    "bandwidth": (quantities.link, _megabits, _host("bandwidth")),
    "up": (quantities.link, _megabits, _host("up")),
    "down": (quantities.link, _megabits, _host("down")),
    "rtt": (quantities.seconds, shown_seconds, _host("rtt")),
    "cores": (count, str, _host("cores")),
    "slots": (count, str, _own("slots")),
    "workers": (count, str, _own("workers")),
}


def values_of(args: argparse.Namespace) -> list[Any]:
    """Return the values that --values lists, parsed for the input that --vary names (a rate, a size, a count ...).

    Raises InputError for an invalid value.
    """
    parse, _, _ = INPUTS[args.vary]
    try:
        return [parse(text) for text in args.values]
    except argparse.ArgumentTypeError as error:
        raise InputError(str(error), where="--values", hint=f"values of {args.vary}") from None


def sweep_rows(args: argparse.Namespace, service: Service, arrivals: Arrivals) -> Iterator[dict[str, Any]]:
    """Yield the figures of one simulation for each of the values that --values lists, as a dict.

    In each simulation the input that --vary names, such as a rate, has one of these values. All simulations draw the
    same random numbers. service, arrivals: the service and its requests before this input is changed.
    """
    _, _, change = INPUTS[args.vary]
    for value in values_of(args):
        there, asked = change(service, arrivals, value)
        found = run(there, None, asked, **options_of(args))
        if not found.overloaded:
            found.quantile(0.99)  # raises for too few requests, with the number needed
        yield {"varied": args.vary, "value": value, "seed": args.seed, **found.figures()}


def sweep_table(args: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return the figures for all values of the varied input as a text table, a line for each value.

    found: the figures that `sweep_rows` yielded, one dict for each value.
    """
    _, shown, _ = INPUTS[args.vary]
    cells = [
        (
            shown(row["value"]),
            *("grows" if row["overloaded"] else shown_seconds(row[name]["value"]) for name in LATENCIES),
            shown_rate(row["goodput"]),
            shown_rate(row["limit"]),
            row["limit_cause"],
        )
        for row in found
    ]
    return text_table((args.vary, *LATENCIES, "answered", "largest rate", "set by"), cells)


def sweep_plot(args: argparse.Namespace, found: list[dict[str, Any]], path: Path) -> None:
    """Draw latencies (vertical, logarithmic) against the input that --vary names (horizontal), into the file `path`.

    found: the figures that `sweep_rows` yielded, one dict for each value of the input. Values for which the service is
    overloaded are left out.
    """
    stable = [row for row in found if not row["overloaded"]]
    with picture(6.0, 4.0) as figure:
        axes = figure.subplots()
        for name in LATENCIES:
            axes.plot([row["value"] for row in stable], [row[name]["value"] for row in stable], marker="o", label=name)
        axes.set(xlabel=args.vary, ylabel="latency, seconds", yscale="log")
        axes.legend()
        figure.savefig(path, dpi=150)


# The picture of `plan run` and `plan solve`: the share of requests that take longer than a time ----------------------

_POINTS = 2000  # points of a line, or dots


def latencies(found: Result, path: Path, goal: tuple[str, float] | None = None) -> None:
    """Draw the latencies of a simulation into a file: for each latency, the proportion of requests that take longer.

    If the load is above the largest rate that the service sustains, draw each request's latency and time of arrival
    instead. path: the picture. goal: a figure such as p99, and its seconds, to be marked.
    """
    with picture(6.0, 4.0) as figure:
        axes = figure.subplots()
        (_growing if found.overloaded else _shares)(axes, found)
        if goal is not None:
            axes.axvline(goal[1], color=INK, linewidth=0.8, linestyle=":", label=f"goal: {goal[0]} of {goal[1]:g} s")
        axes.set_title(found.service.name, fontsize=8)
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=150)


def _shares(axes: Any, found: Result) -> None:
    """Draw, for each latency, the proportion of requests that take longer; mark percentiles and their errors.

    axes: of matplotlib. found: the result of the simulation.
    """
    seconds = found.latencies
    even = np.linspace(0, len(seconds), _POINTS, endpoint=False, dtype=int)
    last = len(seconds) - np.geomspace(1, len(seconds), _POINTS, dtype=int)  # the tail, for the logarithmic scale
    places = np.union1d(even, last)
    axes.plot(seconds[places], 1 - places / len(seconds), label=f"{len(seconds):,} requests", drawstyle="steps-pre")
    for name, (value, low, high) in found.estimates.items():
        if name.startswith("p"):
            left, right = max(0.0, value - low), max(0.0, high - value)
            share = 1 - float(name[1:]) / 100
            axes.errorbar([value], [share], xerr=[[left], [right]], fmt="o", capsize=3, label=f"{name}: {value:.3g} s")
    axes.set(xlabel="latency, seconds", ylabel="share of requests that take longer", yscale="log")


def _growing(axes: Any, found: Result) -> None:
    """Draw the requests of the first run as dots: latency (horizontal) and time of arrival (vertical).

    It shows how latencies grow if the load is above the largest rate that the service sustains. axes: of matplotlib.
    found: the result of the simulation.
    """
    arrived, latency = found.outcome.arrived[0], found.outcome.latency[0]
    places = np.linspace(0, len(arrived), min(len(arrived), _POINTS), endpoint=False, dtype=int)
    label = f"above the largest rate: {found.growth.value:.3g} s more each second"
    axes.plot(latency[places], arrived[places], ".", markersize=2, label=label)
    axes.set(xlabel="latency, seconds", ylabel="arrival, seconds")


# The command ---------------------------------------------------------------------------------------------------------

HELP = "Plan a private-inference service: latencies, what limits them, and the least that meets a goal."
_DESCRIPTION = """Plan a private-inference service before buying it.

A service is a net and a protocol on machines and a link. Its bytes and rounds are the exact prices of the protocol, its
seconds come from a profile of such a machine (python -m scripts.tools.calibrate), and options name machines and link.
Quantities have units: 20/min, 64GB, 352mbit, 2s."""
_SHOW = """Print a service: hosts, steps with their seconds, bytes of a token, the tokens that the stores hold, and the
largest rate of requests with its cause. Nothing is simulated: these are closed forms on means."""
_RUN = """Simulate a service under requests: latencies and their parts, percentiles with 95 % intervals, utilisation.
The output names the engine and the reason for it: a recurrence if no phases share cores and links, events if they do.
Above the largest rate there are no percentiles, and the output says how fast latency grows."""
_SWEEP = """Simulate a service for several values of one input; everything else, and all draws, are the same."""
_SOLVE = """Find the largest rate, or the least store, bandwidth, cores or replicas, that meets a goal, by bisection
with common random numbers; or the best split of a link. Elasticities show what would help: -1 means that 10 % more of
an input lowers the figure by about 10 %. With --prices it prints the cost of the answer."""
_EXAMPLES = {
    "run": """example:
  python -m hummingbird plan run --service service.json --rate 4/s --bandwidth 352mbit --seed 1
""",
    "sweep": """example:
  python -m hummingbird plan sweep --service service.json --rate 4/s --vary bandwidth \\
      --values 300mbit 352mbit 500mbit 1gbit --plot sweep.png
""",
    "solve": """examples:
  python -m hummingbird plan solve --service service.json --goal p99=2s --vary rate
  python -m hummingbird plan solve --service service.json --goal p99=2s --vary cores --rate 4/s \\
      --prices core-hour=0.0446 gb-sent=0.09
""",
    "show": """examples:
  python -m hummingbird plan show --service asplos23/cg --net tinyimagenet/resnet18 --up 835mbit --down 165mbit \\
      --threads 4 17 32 --store 16GB
  python -m hummingbird plan show --service masked --model models:get_model resnet18 10 --input 1x3x32x32 \\
      --profile profile.json --bandwidth 352mbit --store 64GB --save service.json
  python -m hummingbird plan show --service he --model models:get_model cryptonets 10 activation=relu \\
      --input 2048x1x28x28 --profile profile.json --bandwidth 1gbit
  python -m hummingbird plan show --service pir --table 1048576x256 --profile profile.json --rtt 20ms
  python -m hummingbird plan show --service cg --model models:get_model resnet18 10 pool=none --input 1x3x32x32 \\
      --up 835mbit --down 165mbit --threads 4 17 32 --store 16GB --profile profile.json
""",
}
ACTIONS = tuple(_EXAMPLES)
Run = Callable[[argparse.Namespace], int]


def add_parser(commands: Any) -> None:
    """Add the command `plan`, with its actions and options, to the command line."""
    top = add_command(commands, "plan", HELP, _DESCRIPTION, "each action has its own --help\n")
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = _action(actions, "show", "Print a service: steps, seconds, tokens, the largest rate.", _SHOW, _show)
    show.add_argument("--save", type=Path, metavar="FILE", help="write the service, for --service")
    running = _action(actions, "run", "Simulate requests: latencies, and what limits them.", _RUN, _run)
    add_load(running, None, None)
    running.add_argument("--queue", type=count, metavar="N", help="most requests that wait; further ones are rejected")
    running.add_argument("--replicas", type=count, default=1, metavar="N", help="replicas of the service (default 1)")
    text = "a request joins the replica with the fewest requests of K random ones (default: of all)"
    running.add_argument("--choices", type=count, metavar="K", help=text)
    text = "the first replica takes so many times as long for a request (default 1)"
    running.add_argument("--slow", type=positive, default=1.0, metavar="TIMES", help=text)
    running.add_argument("--empty", action="store_true", help="begin with empty stores instead of full ones")
    running.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies (.png, .pdf, .svg)")
    sweep = _action(actions, "sweep", "Simulate for several values of one input.", _SWEEP, _sweep)
    add_load(sweep, None, None)
    sweep.add_argument("--vary", required=True, choices=tuple(INPUTS), help="the input to vary")
    sweep.add_argument("--values", required=True, nargs="+", metavar="VALUE", help="values of the input")
    sweep.add_argument("--plot", type=Path, metavar="FILE", help="draw latencies (.png, .pdf, .svg)")
    solve = _action(actions, "solve", "Find the least, or the largest rate, that meets a goal.", _SOLVE, _solve)
    add_load(solve, solving.REQUESTS, solving.RUNS)
    solve.add_argument("--goal", required=True, type=goal_of, metavar="FIGURE=TIME", help="the goal, as in p99=2s")
    solve.add_argument("--vary", required=True, choices=solving.VARIED, help="the input to find")
    solve.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies at the answer (.png, .pdf, .svg)")


def _action(actions: Any, name: str, line: str, description: str, run: Run) -> argparse.ArgumentParser:
    made = add_command(actions, name, line, description, _EXAMPLES[name])
    add_service(made)
    made.add_argument("--json", metavar="FILE", help="write the figures; - prints them in place of the tables")
    made.set_defaults(run=lambda args: _checked(args, run))
    return made


def _checked(args: argparse.Namespace, run: Run) -> int:
    """Run an action of the command `plan`, such as `solve`, and return its exit code.

    run: the action, which takes the options and returns the exit code. Raises InputError first if a file that the
    options name cannot be written, and EnvironmentProblem for a picture without matplotlib.
    """
    for option in ("json", "save", "plot"):
        path = getattr(args, option, None)
        if path is not None and str(path) != "-":
            check_writable(Path(path), f"--{option}")
    if getattr(args, "plot", None) is not None:
        output.check(args.plot, "--plot")
    return run(args)


def _out(args: argparse.Namespace, figures: Any, text: str) -> None:
    """Print `text`, and with `--json FILE` write `figures` to that file too; with `--json -` print only `figures`.

    figures: numbers and texts in dicts and lists, which are written as JSON. text: the tables.
    """
    if args.json == "-":
        print(json.dumps(figures, indent=2))
        return
    print(text)
    if args.json is not None:
        write_json(Path(args.json), figures)


def _show(args: argparse.Namespace) -> int:
    service = service_of(args)
    _out(args, plan_service.figures(service), plan_service.tables(service))
    if args.save is not None:
        write_together({args.save: to_text(service).encode()})
    return 0


def _run(args: argparse.Namespace) -> int:
    service = service_of(args)
    arrivals = needed(arrivals_of(args, service))
    with progress_line(desc="simulation", unit="request", quiet=args.json == "-") as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = run(
            service,
            None,
            arrivals,
            **options_of(args),
            full=not args.empty,
            queue=args.queue,
            replicas=args.replicas,
            choices=args.choices,
            slow=args.slow,
            progress=progress,
        )
    if not found.overloaded:
        found.quantile(0.99)  # raises for too few requests, with the number needed
    cost = cost_of(found)
    figures = {**found.figures(), "seed": args.seed, "cost_per_hour": cost.hour}
    figures["cost_per_1000_images"] = cost.per_thousand_images
    money = [_money(cost)] if args.prices else []
    _out(args, figures, "\n\n".join([service.name, found.table(), *_warnings(found), *money]))
    if args.plot is not None:
        latencies(found, args.plot)
    return 0


def _warnings(found: Result) -> list[str]:
    """Return the warnings on a simulation as texts: that its load is too high, or that its runs are too short.

    found: the result of the simulation. The load is too high if it is above the largest rate that the service sustains.
    Close to this rate a latency depends on many earlier requests; if a run has too few, the warning names a number for
    --requests.
    """
    bounded = found.system.queue is not None or found.load.patience is not None
    load = 0.0 if bounded else found.arrivals.per_second() / found.limit.rate
    if found.overloaded:
        return [
            f"above the largest rate: {100 * load:.0f} % of it. Latency grows by {found.growth.value:.3g} s each "
            f"second and has no percentiles\nhint: ask for less, or change {found.limit.cause}"
        ]
    if load > solving.heaviest(found.load.shape[1]):
        return [
            f"at {100 * load:.0f} % of the largest rate a queue has a long memory, and these runs are short\n"
            f"hint: --requests {10 / (1 - load) ** 2:,.0f} shows how it goes on"
        ]
    return []


def _sweep(args: argparse.Namespace) -> int:
    values_of(args)
    service = service_of(args)
    arrivals = needed(arrivals_of(args, service))
    with progress_line(total=len(args.values), desc="simulations", unit="value", quiet=args.json == "-") as bar:
        found = []
        for row in sweep_rows(args, service, arrivals):
            found.append(row)
            bar.update()
    _out(args, found, sweep_table(args, found))
    if args.plot is not None:
        sweep_plot(args, found, args.plot)
    return 0


def _solve(args: argparse.Namespace) -> int:
    service = service_of(args)
    goal, most = args.goal
    arrivals = arrivals_of(args, service)
    if arrivals is None and args.vary == "rate":
        arrivals = Gaps(1.0, images=args.images or service.images)
    with progress_line(desc="bisection", unit="trial", quiet=args.json == "-") as bar:
        found = solving.solve(
            service,
            None,
            vary=args.vary,
            arrivals=needed(arrivals),
            told=bar.update,
            **{goal: most},
            **options_of(args),
        )
    _out(args, _solution(found), _answer(found, money=bool(args.prices)))
    if args.plot is not None:
        latencies(found.run, args.plot, goal=(found.goal, found.most))
    return 0


def _solution(found: solving.Solution) -> dict[str, Any]:
    return {
        "varied": found.varied,
        "value": found.value,
        "goal": found.goal,
        "goal_seconds": found.most,
        f"{found.goal}_seconds": found.figure,
        "engine": found.run.engine,
        "why": found.run.why,
        "load": found.load,
        "heaviest_load_tried": found.heaviest,
        "at_heaviest_load": found.at_limit,
        "images_per_hour": found.run.arrivals.per_second() * found.run.arrivals.mean_images * 3600,
        "limit_requests_per_second": found.run.limit.rate,
        "limit_cause": found.run.limit.cause,
        "trials": found.trials,
        "elasticities": {name: None if math.isnan(value) else value for name, value in found.elasticities.items()},
        "next_token_bytes": found.next_token,
        "cost_per_hour": found.cost.hour,
        "cost_per_1000_images": found.cost.per_thousand_images,
        "run": found.run.figures(),
    }


_SHOWN: dict[str, Callable[[float], str]] = {
    "rate": lambda value: f"{shown_rate(value)} at most",
    "store": lambda value: f"{shown_bytes(value)} of store at least",
    "bandwidth": lambda value: f"{value / 1e6:.4g} Mb/s at least",
    "split": lambda value: f"{value / 1e6:.4g} Mb/s up, the rest down",
    "cores": lambda value: f"{value:.0f} core{'s' * (value > 1)} of every host at least",
    "replicas": lambda value: f"{value:.0f} replica{'s' * (value > 1)} at least",
}


def _answer(found: solving.Solution, *, money: bool) -> str:
    per_hour = found.run.arrivals.per_second() * found.run.arrivals.mean_images * 3600
    lines = [
        f"{_SHOWN[found.varied](found.value)}: {per_hour:,.0f} images/h with a {found.goal} of "
        f"{shown_seconds(found.figure)}, goal {shown_seconds(found.most)}",
        f"engine: {found.run.engine}: {found.run.why}",
        f"largest rate {shown_rate(found.run.limit.rate)}, set by {found.run.limit.cause}; this is "
        f"{100 * found.load:.0f} % of it; {found.trials} trials",
    ]
    if found.at_limit:
        wanted = 10 / (1 - 0.98) ** 2
        lines.append(
            f"no load above {100 * found.heaviest:.0f} % was tried, which takes longer runs\n"
            f"hint: --requests {wanted:,.0f} goes up to 98 %"
        )
    if found.next_token and found.run.service.token_bytes:
        lines.append(f"one more token fits from {shown_bytes(found.next_token)} on")
    rows = [(name, "-" if math.isnan(value) else f"{value:+.2f}") for name, value in found.elasticities.items()]
    table = text_table((f"what moves the {found.goal}", "elasticity"), rows)
    return "\n".join(lines) + f"\n\n{table}" + (f"\n\n{_money(found.cost)}" if money else "")


def _money(cost: HostCost) -> str:
    return (
        f"{cost.hour:.4g} an hour: cores {cost.cores:.4g}, sent {cost.sent:.4g}, stored {cost.stored:.4g}; "
        f"{cost.per_thousand_images:.4g} for 1,000 images"
    )

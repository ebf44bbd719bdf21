"""Capacity: how many requests a private-inference service can serve on some machines and link, before they are bought.

service        a service as data: hosts, phases of steps, tokens       service_json   its file
nets, encrypted, lookups, shipped, paper, compose, published           build services from nets and plans
profile        measured seconds of a machine                           quantities     units of options and tables
arrivals       processes of requests, and seeded draws
system         rules that both engines follow                          limit          largest rates in closed form
recurrence, workers, events, engines    the two engines, and the choice between them
result         figures and money of a simulation, and their intervals
solving        the least input that meets a goal
"""

from hummingbird.capacity.arrivals import Gaps, Hourly, Trace, Users, constant, poisson, trace
from hummingbird.capacity.encrypted import he
from hummingbird.capacity.engines import run
from hummingbird.capacity.limit import limits
from hummingbird.capacity.lookups import pir
from hummingbird.capacity.nets import gmw, masked
from hummingbird.capacity.profile import load as load_profile
from hummingbird.capacity.result import Result
from hummingbird.capacity.service import Compute, Host, Hosts, Phase, Prices, Rounds, Send, Service, WorkStep, chain
from hummingbird.capacity.service_json import from_text, to_text
from hummingbird.capacity.shipped import crypten
from hummingbird.capacity.solving import Solution, solve

__all__ = [
    "Compute",
    "Gaps",
    "Host",
    "Hosts",
    "Hourly",
    "Phase",
    "Prices",
    "Result",
    "Rounds",
    "Send",
    "Service",
    "Solution",
    "WorkStep",
    "Trace",
    "Users",
    "chain",
    "constant",
    "crypten",
    "from_text",
    "gmw",
    "he",
    "limits",
    "load_profile",
    "masked",
    "pir",
    "poisson",
    "run",
    "solve",
    "to_text",
    "trace",
]

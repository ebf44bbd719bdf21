"""Capacity: what a private-inference service can carry on given machines and a given link, before it is paid for."""

from hummingbird.capacity.service import Compute, Host, Hosts, Phase, Prices, Rounds, Send, Service, Step, chain
from hummingbird.capacity.service_json import from_text, to_text

__all__ = [
    "Compute",
    "Host",
    "Hosts",
    "Phase",
    "Prices",
    "Rounds",
    "Send",
    "Service",
    "Step",
    "chain",
    "from_text",
    "to_text",
]

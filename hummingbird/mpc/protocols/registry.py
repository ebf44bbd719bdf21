"""The protocols that decide signs, by the name that users write: `convert_model(net, protocol="masked")`."""

from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.mpc.protocols.masked import Masked

PROTOCOLS: dict[str, type[Comparison]] = {"masked": Masked, "gmw": Gmw}


def named(protocol: str) -> type[Comparison]:
    """The comparison of the protocol with this name. Raises ConfigError if there is none."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {protocol!r}", where="protocol", hint=f"one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]

"""The six nets of Garimella et al. as `masked` services on a measured machine: two parties and a dealer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tqdm import tqdm

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.capacity.limit import limits
from hummingbird.capacity.nets import masked
from hummingbird.capacity.paper import BANDWIDTH
from hummingbird.capacity.profile import Profile
from hummingbird.capacity.published import asplos23
from hummingbird.capacity.service import Hosts
from scripts.papers.asplos_profile import torch_net
from scripts.papers.asplos_tables import GB, Section, offline, online, spoken

STORE, RTT = 16 * GB, 2e-3
WINDOWS = {"exact": EXACT, "[20:12)": BitWindow(20, 12)}


def masked_section(profile: Profile, names: Iterable[str] = tuple(asplos23().nets)) -> Section:
    """A row for each net and window: tokens in the store, seconds, images per hour and what bounds them."""
    rows, notes = [], set()
    for name in tqdm(names, desc="masked"):
        module, shape = torch_net(name)
        module = module.to_empty(device="cpu")  # prices do not depend on weights, whatever these are
        with torch.no_grad():
            for value in module.state_dict().values():
                value.fill_(1)
        for title, window in WINDOWS.items():
            private = hummingbird.convert_model(module, window)
            at = masked(private, (1, *shape), profile, "store").at(Hosts(store=STORE, bandwidth=BANDWIDTH / 2, rtt=RTT))
            notes |= set(at.notes)
            (size,) = at.token_bytes.values()
            least = limits(at)[0]
            seconds = (f"{offline(at):,.3f}", f"{online(at):,.3f}")
            hourly = f"{3600 * least.rate * at.images:,.0f}"
            rows.append(
                (spoken(name), title, f"{size / 1e6:,.1f}", f"{at.most_tokens:,}", *seconds, hourly, least.cause)
            )
    machine = "; ".join(sorted(notes))
    words = (
        "The same nets by hummingbird's default protocol, in another setting: two parties who must not collude hold "
        "shares of the image, and a dealer makes what they need in advance, so that nothing is garbled or encrypted. "
        "500 Mb/s each way, 2 ms there and back, 16 GB at party 0; one image a request, exact comparisons and the "
        "window [20:12), bits 12 to 19 of 64."
    )
    below = f"Here {machine}. Without a dealer: [two-party.md](two-party.md)."
    head = ("", "window", "token, MB", "K", "in advance, s", "with the image, s", "images an hour", "bound by")
    return Section("The same nets with shares and a dealer", words, head, rows, below)

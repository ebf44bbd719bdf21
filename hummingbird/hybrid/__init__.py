"""Inference between two parties without a dealer: encrypted layers offline; ring convolutions and garbled gates online.

The data's side has the images, the model's side the weights. Offline, before an image is known, they deal slots:
material for one image each. Online, every layer of gates takes one round trip. A proxy can play the data's side for
users. Sources: Impala (Choi et al., 2022), Delphi (Mishra et al., 2020), Garimella et al. (ASPLOS 2023).

From a net to a plan:
constants       merges tensors that a net adds or multiplies by into layers
lowering        one rule for each operation of a net: its steps in the plan
plan_builder    a plan under construction; chooses rings
scales          chooses units
convert         `convert_model`: net to plan
plan            the plan: steps, rings and units
plan_json       plans and descriptions as text, and their check

The protocol:
arithmetic      local steps on shares: the walks of both sides over a plan
encrypted       linear layers offline, by encryption
gc/             garbled gates and oblivious transfers
numbering       numbers of the OTs and tiles that each slot uses
data_side       the data's side
model_side      the model's side
ideal           the protocol with ideal parts, for simulations and tests
net             both sides in one process

Over a network:
messages        formats of messages
message_stream  one end of the connection between the sides
session         set-up of a session
store           a session's folder of slots
sessions        all sessions of a server
service         the model's side as a service
client          the data's side as a client
proxy           the data's side as a proxy for users
proxy_view      the part of a plan that users know
users           a proxy's users, at the model's side
user            a proxy's user
switched        encrypted inputs of users, by key switching
prices          bytes of every message
report          reports of plans and runs
command         the gc programs
"""

from hummingbird.hybrid.convert import convert_model, make_plan
from hummingbird.hybrid.net import HybridNet

__all__ = ["HybridNet", "convert_model", "make_plan"]

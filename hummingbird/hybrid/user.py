"""A user behind a proxy: sends X - r to the model's side, and adds two shares of the logits.

The proxy supplies the mask's seed and never sees X - r; the model's side sees X - r and not the seed. With
input="switched" the user instead sends X encrypted under its own key, as in Impala (switched.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import torch
from torch import Tensor

from hummingbird.errors import ConfigError, PeerError
from hummingbird.he import bfv
from hummingbird.hybrid import messages, report
from hummingbird.hybrid.data_side import expand
from hummingbird.hybrid.encrypted import KEY_BYTES
from hummingbird.hybrid.message_stream import TIMEOUT
from hummingbird.hybrid.messages import SLOT_HEAD
from hummingbird.hybrid.plan import reduced
from hummingbird.hybrid.proxy_view import MOST_VALUES, read_proxy_view
from hummingbird.hybrid.switched import Image, keys_of
from hummingbird.hybrid.users import INPUTS
from hummingbird.prg import SEED_BYTES
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain
from hummingbird.table import Report


class ProxiedNet:
    """The client of a net behind a proxy, which supplies the slots: `net(images)` returns the net's logits.

    server, proxy: addresses. input: how images are sent: "shares", under a mask of the proxy, or "switched", encrypted.
    tls, token: who both sides are, for both services; as in `rpc.client.connect`. timeout: longest wait for an answer,
    seconds.
    once: bytes sent and received before the first image, by method called. online: bytes sent and received for images,
    by method called.
    Raises the errors of `rpc.client.connect`; PeerError if a service is of another kind, refuses, or is silent.

        with ProxiedNet("10.0.0.1:7000", "10.0.0.2:7000", tls=tls) as net:
            logits = net(images)                                      # (n, 3, 32, 32) to (n, 10)
    """

    def __init__(
        self,
        server: str,
        proxy: str,
        *,
        input: str = INPUTS[0],
        tls: Tls | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if input not in INPUTS:
            raise ConfigError(f"input={input!r}", where="input", hint=f"one of {', '.join(INPUTS)}")
        self.once: Counter[str] = Counter()
        self.online: Counter[str] = Counter()
        self._input, self._images = input, 0
        self._timeout = timeout
        self._names = {"server": f"server {server}", "proxy": f"proxy {proxy}"}
        self._channels = {"proxy": rpc_client.connect(proxy, tls, timeout, token=token)}
        try:
            self._channels["server"] = rpc_client.connect(server, tls, timeout, token=token)
            self.plan, self._digest = read_proxy_view(
                self._call(self.once, "proxy", "Public", messages.CallOpening().pack())
            )
            if max(self.plan.input.count, self.plan.output.count) > MOST_VALUES:
                raise PeerError("its images are too large", where=self._names["proxy"])
            self._image, self._secret = Image(self.plan.input), bfv.Secret.new()
            if input == "switched":
                public = self._call(
                    self.once, "proxy", "Key", messages.CallOpening(plan=self._digest).pack(), KEY_BYTES
                )
                keys = bytes.fromhex(self._digest) + keys_of(self._secret, public)
                self._name = self._call(self.once, "server", "Keys", keys, messages.TICKET_BYTES)
        except BaseException:
            self.close()
            raise

    def __call__(self, images: Tensor, *, progress: Callable[[int], object] = lambda images: None) -> Any:
        """Compute logits, float32 (n, ...), of images (n, ...), one by one, in the structure of the net's results.

        progress: called with 1 after each image. Raises InputError for images of another shape or beyond the plan's
        range, before anything is sent.
        """
        values, logits = self.plan.encode(images), []
        for x in values:
            logits.append(self._infer(x[None]))
            progress(1)
        return self.plan.results(self.plan.decode(torch.cat(logits)))

    def report(self) -> Report:
        """Return a text table of the predicted and counted bytes of all messages so far."""
        return report.user(self.plan, self._input, self.once, self.online, self._images)

    def close(self) -> None:
        """Disconnect; may be called twice."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> ProxiedNet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _infer(self, x: Tensor) -> Tensor:
        step, output = self.plan.input, self.plan.output
        size = messages.words_bytes(output.count, output.ring)
        asked = messages.UserOpening(plan=self._digest, input=self._input).pack()
        slot = self._call(self.online, "proxy", "Slot", asked, SLOT_HEAD + size)
        ticket, seed, first = slot[: messages.TICKET_BYTES], slot[SLOT_HEAD - SEED_BYTES : SLOT_HEAD], slot[SLOT_HEAD:]
        if self._input == "switched":
            body = self._name + self._image.encrypt(self._secret, x)
        else:
            masked = reduced(x - expand(seed, step.shape, step.ring), step.ring)
            body = messages.pack(masked, step.ring).numpy().tobytes()
        second = self._call(self.online, "server", "Input", bytes.fromhex(self._digest) + ticket + body, size)
        self._images += 1
        shares = [messages.unpack(messages.tensor_of(share), output.shape, output.ring) for share in (first, second)]
        return reduced(shares[0] + shares[1], output.ring)

    def _call(self, count: Counter[str], side: str, method: str, request: bytes, size: int | None = None) -> bytes:
        """Call a method of the "server" or the "proxy", and return the answer; adds both messages' bytes to `count`.

        request: the message. size: expected bytes of the answer, if known. Raises PeerError for an answer of another
        size.
        """
        try:
            answer = rpc_client.call(self._channels[side], method, request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise explain(error, self._names[side]) from None
        count.update({method: len(request), f"{method}: answer": len(answer)})
        if size is not None and len(answer) != size:
            what = f"malformed message: {len(answer)} bytes instead of {size}"
            raise PeerError(what, where=self._names[side], hint="is it the right service, of this release?")
        return answer

"""Products of a server's polynomials with a client's encrypted ring elements, exact modulo 2^k: BFV.

    from hummingbird.he import bfv

    secret = bfv.Secret.new()                                     # the client, which has ring elements r
    fresh = secret.encrypt(r, k)                                  # to the server
    sums = bfv.products(fresh.parts(), bfv.transform(w), pairs, outputs)
    reply = bfv.evaluate(secret.public(), sums, masks, k, used)   # back to the client, who learns w r - masks alone
    secret.decrypt(reply, k)

scheme      parameters, weights and their products
keys        the secret, encryption, decryption
messages    ciphertexts and keys as they are sent
reply       what hides the server's weights in an answer
noise       the bounds that make results exact, and answers independent of the weights
switching   ciphertexts of one secret to those of another

How a layer lies in polynomials, which is public:

layer       a convolution or a linear layer by its shapes
layout      its values in polynomials of several channels, whose products it is
taps        its values in polynomials of one channel of several images, for weights most of which are zero
blocks      how many channels and outputs share a polynomial; planes, axis: where the values of an image stand
"""

from hummingbird.he.bfv.keys import Secret
from hummingbird.he.bfv.layout import Layout
from hummingbird.he.bfv.messages import Fresh, PublicKey, Reply
from hummingbird.he.bfv.reply import draw_masks, evaluate
from hummingbird.he.bfv.scheme import DEGREE, products, transform
from hummingbird.he.bfv.switching import SwitchingKey, switch_key
from hummingbird.he.bfv.taps import Taps

__all__ = [
    "DEGREE",
    "Fresh",
    "Layout",
    "PublicKey",
    "Reply",
    "Secret",
    "SwitchingKey",
    "Taps",
    "draw_masks",
    "evaluate",
    "products",
    "switch_key",
    "transform",
]

"""Products of a server's polynomials with a client's encrypted ring elements, exact modulo 2^k: BFV.

    from hummingbird.he import bfv

    secret = bfv.Secret.new()                                     # the client, which holds ring elements r
    fresh = secret.encrypt(r, k)                                  # to the server
    sums = bfv.products(fresh.parts(), bfv.transform(w), pairs, outputs)
    reply = bfv.evaluate(secret.public(), sums, masks, k, used)   # back to the client, which learns only w r - masks
    secret.decrypt(reply, k)

scheme      parameters, weights and their products
keys        the secret, encryption, decryption; switching from one secret to another
messages    ciphertexts and keys as they are sent
reply       answers, and how they hide the server's weights
noise       bounds: results are exact, and answers reveal nothing about the weights

The modules below map a layer to polynomials, as hummingbird/polynomials does; the mapping is public:

layout      several channels, of one or several images, in a polynomial: a layer is a product of polynomials
taps        the same products for weights that are mostly zero, from the nonzero weights alone
"""

from hummingbird.he.bfv.keys import Secret, SwitchingKey, switch_key
from hummingbird.he.bfv.layout import Layout
from hummingbird.he.bfv.messages import Fresh, PublicKey, Reply
from hummingbird.he.bfv.reply import draw_masks, evaluate
from hummingbird.he.bfv.scheme import DEGREE, products, transform
from hummingbird.he.bfv.taps import LayerWork, Terms

__all__ = [
    "DEGREE",
    "Fresh",
    "Layout",
    "PublicKey",
    "Reply",
    "Secret",
    "SwitchingKey",
    "Terms",
    "LayerWork",
    "draw_masks",
    "evaluate",
    "products",
    "switch_key",
    "transform",
]

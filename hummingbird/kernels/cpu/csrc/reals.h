// Residues modulo a prime as float64 integers: vectors of residues, and the reduction of a sum to a residue.

#pragma once

#include "dispatch.h"

namespace {

// A register of numbers; and the same number of residues, at any address.
template <class Target>
using Reals = Vector<double, Target>;
template <int bytes>
struct ResiduesOf {
    typedef int32_t type __attribute__((vector_size(bytes), aligned(4)));
};
template <class Target>
using Residues = typename ResiduesOf<Target::kBytes / 2>::type;

// One step towards the residue of x: ciphertexts/arithmetic.py says when it is enough. Adding and subtracting 1.5 2^52
// rounds to an integer, ties to even; |x / q| < 2^51 leaves room for it. The product is exact, with and without fusing.
template <typename V, typename Q>
BODY void reduce(V& x, const Q& q, const Q& inverse) {
    constexpr double kMagic = 6755399441055744.0;
    x = x - ((x * inverse + kMagic) - kMagic) * q;
}

// Keeps the compiler from fusing the product x with the following sum: x is rounded here.
template <typename V>
BODY void rounded(V& x) {
#if X86 && !defined(__clang__)
    asm("" : "+x"(x));  // in its register; clang takes no vector that is wider than the baseline's
#else
    asm("" : "+m"(x));
#endif
}

}  // namespace

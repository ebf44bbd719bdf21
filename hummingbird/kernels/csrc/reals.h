// Residues modulo a prime as float64 integers: vectors of them, and the step that brings a sum back to a residue.

#pragma once

#include "common.h"

namespace {

typedef double Double8 __attribute__((vector_size(64)));
typedef double Double4 __attribute__((vector_size(32)));
typedef double Double2 __attribute__((vector_size(16)));
typedef int32_t Int8 __attribute__((vector_size(32), aligned(4)));
typedef int32_t Int4 __attribute__((vector_size(16), aligned(4)));
typedef int32_t Int2 __attribute__((vector_size(8), aligned(4)));

// One step towards the residue of x: ../ciphertexts.py says when it is enough. Adding and subtracting 1.5 2^52 rounds
// to an integer, ties to even; |x / q| < 2^51 leaves room for it. The product is exact, with and without fusing.
template <typename V, typename Q>
BODY void reduce(V& x, const Q& q, const Q& inverse) {
    constexpr double kMagic = 6755399441055744.0;
    x = x - ((x * inverse + kMagic) - kMagic) * q;
}

}  // namespace

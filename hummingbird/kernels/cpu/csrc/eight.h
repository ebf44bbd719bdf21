// Eight elements of Z_2^64 as one value, which the compiler maps to one, two or four registers of the current target.

#pragma once

#include "dispatch.h"

typedef uint64_t Eight __attribute__((vector_size(64)));
typedef int64_t SignedEight __attribute__((vector_size(64)));
constexpr Eight kLane = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr Eight kOne = {1, 1, 1, 1, 1, 1, 1, 1};

#define PICK(mask, yes, no) ((no) ^ (((no) ^ (yes)) & (mask)))

namespace {

// step(i, bytes) for elements i .. i + 7, of which `bytes` bytes exist: the last step may have fewer than eight.
template <class F>
BODY void by_eights(int64_t n, const F& step) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) step(i, sizeof(Eight));
    if (i < n) step(i, size_t(n - i) * 8);
}

BODY void load(Eight& to, const uint64_t* from, size_t bytes) {
    to = Eight{};
    memcpy(&to, from, bytes);
}

// All ones where the bit is set, else 0; from the eight bits of a byte.
BODY void spread(Eight& to, uint8_t bits) { to = 0 - (((uint64_t(bits) * kOne) >> kLane) & kOne); }

}  // namespace

// Shared by the two PRFs of dpf.cpp: the interface of their steps, and the corrections.

#pragma once

#include "dpf.h"

namespace {

constexpr int kBlock = 16;       // bytes of a node
constexpr int kCorrection = 17;  // of a level's corrections: a block, and the children's control bits

// Children: n nodes become 2 n in place; `corrections` are a level's 17 bytes. The buffer holds kWindow nodes,
// 2 n <= kWindow; memory behind the children may be overwritten. Convert: n nodes become 128 n bytes; `final` are 128
// bytes; up to seven nodes behind the n are read.
struct Steps {
    void (*children)(const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n);
    void (*convert)(const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out);
};

// The two children's corrections, 32 bytes: the level's block, with each child's control bit.
BODY void both(const uint8_t* corrections, uint8_t* out) {
    memcpy(out, corrections, kBlock);
    memcpy(out + kBlock, corrections, kBlock);
    out[0] |= corrections[kBlock] & 1;
    out[kBlock] |= corrections[kBlock] >> 1 & 1;
}

// x[i] ^= correction[i] where the node's control bit is set.
BODY void correct(const uint8_t* node, const uint8_t* correction, int n, uint8_t* x) {
    const uint8_t mask = uint8_t(-(node[0] & 1));
    for (int i = 0; i < n; i++) x[i] ^= correction[i] & mask;
}

}  // namespace

// Distributed point functions for the kernels of this folder: selection bits of one key, leaf after leaf.
// kernels/lookups.py has the key's format and the equations. A leaf is 1024 selection bits, 128 bytes.
//
//     Walker walker;                          // about 2 KiB; one for each key and thread; aligned to 64 bytes
//     dpf_open(walker, key);                  // reads the header, makes the AES round keys
//     dpf_walk(walker, first, leaves, out);   // writes 128 * leaves bytes: leaves first .. first + leaves - 1
//     dpf_walk(walker, first + leaves, ...);  // continues from there
//
// The key must have passed kernels/lookups.py's `check` (its rows determine its size), and its memory must stay valid while
// the walker is in use. Needs 0 <= first, 0 <= leaves, first + leaves <= ceil(rows / 1024). `out` needs no alignment.
// The bits of the last leaf at and above `rows` are random and the same in both keys: pad the table with zeros.
//
// Calls may come in any order. The walker keeps the nodes above a window of kWindow leaves (aligned to kWindow), and
// the path to it: no node is computed twice in sequence, with pieces of any size; a step to the next window costs two
// nodes on average, to any other window at most the tree's depth; one window's nodes cost kWindow - 1 expansions. So
// short pieces (8 leaves, 1 KiB) of many keys in turn are as cheap as long ones. With ChaCha12 pieces of a multiple of
// 8 leaves, aligned to 8, waste no lanes.
//
// `current_isa` chooses at every call: AES by VAES on AVX-512, AES-NI, or bit slices; ChaCha12 by AVX-512, AVX2, or the
// baseline. All compute the same bits. The choice may change while a walker is in use.

#pragma once

#include "dispatch.h"

constexpr int64_t kLeafBytes = 128;
constexpr int kMostDepth = 30;  // 2^40 rows
constexpr int kWindowLevels = 6, kWindow = 1 << kWindowLevels;

struct Prf {
    int id;                  // 1: AES, 2: ChaCha12
    uint8_t public_key[16];  // ChaCha12: the nonce in the first 12 bytes
    alignas(16) uint8_t round_keys[11][16];
};

struct Walker {
    Prf prf;
    const uint8_t* corrections;  // 17 bytes a level, then 128 for the leaves; in the key
    int64_t leaves;              // of the whole table
    int64_t window;              // number of the window whose nodes are here; -1: none yet
    int depth, top;              // levels of the tree, and of those above the windows
    alignas(16) uint8_t path[kMostDepth + 1][16];  // nodes from the root down to the window's own
    alignas(64) uint8_t nodes[kWindow + 8][16];    // the window's leaves, before conversion; spare
};

HIDDEN void dpf_open(Walker& walker, const uint8_t* key);
HIDDEN void dpf_walk(Walker& walker, int64_t first, int64_t leaves, uint8_t* out);

// Shared by the kernels on tables of rows: the layout of a bit-sliced table, and the queries' selection bits.
//
// Eight rows are a group, and byte c of a group holds bit c of its eight rows. 64 such bytes, for eight bytes of each
// row, are a vector; four vectors, side by side for each group, are a tile; the tiles of 128 groups (1024 rows, a leaf
// of the DPF) are a block: [block][tile][group][vector][64], read once from front to back. The last vector and the last
// groups are padded with zeros.

#pragma once

#include <vector>

#include "dpf.h"
#include "eight.h"

namespace {

constexpr int64_t kGroups = kLeafBytes;  // of a block: one byte of a query's leaf for each
constexpr int kWide = 4;                 // vectors of a tile

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct alignas(64) Line {
    uint8_t byte[64];
};

struct Shape {
    int64_t rows, row_bytes;
    int64_t groups() const { return (rows + 15) / 16 * 2; }  // even: tiles.h takes two in one step
    int64_t vectors() const { return (row_bytes + 7) / 8; }
    int64_t blocks() const { return (groups() + kGroups - 1) / kGroups; }
    int64_t tiles() const { return (vectors() + kWide - 1) / kWide; }
    int64_t groups_of(int64_t block) const { return least(kGroups, groups() - block * kGroups); }
    int width_of(int64_t tile) const { return int(least(kWide, vectors() - tile * kWide)); }
    // Where a group's vectors of a tile begin, in lines of 64 bytes; `group` counts from the block's first.
    int64_t line(int64_t block, int64_t tile, int64_t group) const {
        return block * kGroups * vectors() + tile * kWide * groups_of(block) + group * width_of(tile);
    }
};

// ---- bits and bytes; T is a word, or a vector of words

// Bit j of byte i <-> bit i of byte j, in each word.
template <typename T>
BODY void turn(T& x) {
    const uint64_t masks[3] = {0x00AA00AA00AA00AA, 0x0000CCCC0000CCCC, 0x00000000F0F0F0F0};
#pragma GCC unroll 3
    for (int step = 0, shift = 7; step < 3; step++, shift *= 2) {
        const T t = (x ^ (x >> shift)) & masks[step];
        x ^= t ^ (t << shift);
    }
}

// Byte j of word i <-> byte i of word j, for eight words.
template <typename T>
BODY void exchange(T* word) {
    const uint64_t masks[3] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
#pragma GCC unroll 3
    for (int step = 0; step < 3; step++) {
        const int distance = 4 >> step;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (i & distance) continue;
            const T t = ((word[i] >> (8 * distance)) ^ word[i + distance]) & masks[step];
            word[i + distance] ^= t;
            word[i] ^= t << (8 * distance);
        }
    }
}

// ---- the selection bits of all queries for some blocks: leaves of their keys, or bits of the caller

struct Queries {
    const uint8_t* data;        // `size` bytes for each
    int64_t count, size, leaf;  // leaf: of the DPF, where the table begins; -1: the data are bits
};

// Blocks at a time: the bits of 192 queries, 192 KiB, fit a second-level cache. The last line of a stride keeps queries
// out of the same sets of a cache, and makes any eight bytes readable.
constexpr int64_t kBlocks = 8, kStride = kBlocks * kLeafBytes + 64;

struct Selections {
    const Queries& queries;
    std::vector<Walker> walkers;
    std::vector<Line> lines;  // kStride bytes for each query; zero for those that fill up the last eight

    explicit Selections(const Queries& all)
        : queries(all),
          walkers(size_t(all.leaf < 0 ? 0 : all.count)),
          lines(size_t((all.count + 7) / 8 * 8 * kStride / 64)) {
        for (size_t q = 0; q < walkers.size(); q++) dpf_open(walkers[q], all.data + int64_t(q) * all.size);
    }

    const uint8_t* read(int64_t block, int64_t blocks) {
        uint8_t* out = lines[0].byte;
        for (int64_t q = 0; q < queries.count; q++, out += kStride) {
            if (queries.leaf >= 0) {
                dpf_walk(walkers[size_t(q)], queries.leaf + block, blocks, out);
                continue;
            }
            const int64_t start = block * kLeafBytes, rest = least(queries.size - start, blocks * kLeafBytes);
            memcpy(out, queries.data + q * queries.size + start, size_t(rest));
            memset(out + rest, 0, size_t(blocks * kLeafBytes - rest));
        }
        return lines[0].byte;
    }
};

}  // namespace

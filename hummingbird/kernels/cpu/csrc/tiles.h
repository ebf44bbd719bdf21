// The XOR of the rows that each query selects, from the bit-sliced table of slices.h: for targets that multiply bit
// matrices fast. tiles_x86.h has the two functions of a target, `operands` and `add_tile`.
//
// The XOR is a product of bit matrices over GF(2). Four query groups (of eight queries each) times a tile's four
// vectors are summed in registers over the groups of a block (K. Goto, R. van de Geijn, Anatomy of High-Performance
// Matrix Multiplication, ACM TOMS 2008), while the next tile is fetched from memory: a tile, 32 KiB, stays in the
// first-level cache for all queries, and is read from memory once.
//
// operands(target, bits, out): eight queries' bits for a block, 128 bytes for each, kStride apart, as `operand_words`
// words in the form that the target multiplies by.
// add_tile(target, tile): sums[q][v] ^= query group q's operands times vector v, over the groups of a block.

#pragma once

#include "slices.h"

namespace {

constexpr int kDeep = 4;  // query groups of a tile

struct Ahead {  // what to fetch meanwhile, into the second-level cache: so many lines for each group
    const uint8_t* from;
    int lines;
    BODY void fetch(int now) {
        for (int i = 0; i < now; i++, from += 64) __builtin_prefetch(from, 0, 2);
    }
};

struct Tile {
    const uint8_t* table;
    int vectors;
    const uint64_t* operands;
    int queries;  // groups of them
    int64_t groups;
    uint8_t* sums;
    Ahead ahead;
};

// ---- all tiles of blocks first to last; sums [tile][query group][vector][64]

template <class Target>
void add_tiles(Target target, const Shape& s, const uint8_t* table, const Queries& queries, int64_t first,
               int64_t last, Line* sums) {
    const int64_t deep = (queries.count + 7) / 8, size = operand_words(target);
    const int64_t steps = (deep + kDeep - 1) / kDeep;
    Selections selections(queries);
    std::vector<Line> lines(size_t(deep * size / 8));
    uint64_t* const words = (uint64_t*)lines[0].byte;
    for (int64_t start = first; start < last; start += kBlocks) {
        const int64_t blocks = least(kBlocks, last - start);
        const uint8_t* bits = selections.read(start, blocks);
        for (int64_t block = start; block < start + blocks; block++, bits += kLeafBytes) {
            for (int64_t q = 0; q < deep; q++) operands(target, bits + 8 * q * kStride, words + q * size);
            const int64_t groups = s.groups_of(block);
            for (int64_t t = 0; t < s.tiles(); t++) {
                const int width = s.width_of(t), part = int((width + steps - 1) / steps);
                const uint8_t* const at = table + 64 * s.line(block, t, 0);
                for (int64_t step = 0; step < steps; step++) {
                    const int64_t q = step * kDeep, fetched = width + step * part;  // lines for each group
                    const Ahead ahead = {at + fetched * groups * 64, fetched < 2 * width ? part : 0};
                    add_tile(target, Tile{at, width, words + q * size, int(least(kDeep, deep - q)), groups,
                                          sums[t * kWide * deep + q * width].byte, ahead});
                }
            }
        }
    }
}

// Byte c of a word of the sums holds bit c of eight queries' bytes.
inline void give_tiles(const Shape& s, const Line* sums, int64_t count, uint8_t* out) {
    const int64_t deep = (count + 7) / 8;
    for (int64_t q = 0; q < deep; q++)
        for (int64_t at = 0; at < s.row_bytes; at++) {
            const int64_t v = at / 8, t = v / kWide;
            uint64_t word;
            memcpy(&word, sums[t * kWide * deep + q * s.width_of(t) + v % kWide].byte + at % 8 * 8, 8);
            turn(word);
            for (int64_t k = 8 * q; k < least(8 * q + 8, count); k++, word >>= 8)
                out[k * s.row_bytes + at] = uint8_t(word);
        }
}

}  // namespace

// The sum mod 2^width, or the XOR, of the rows that each query selects, from the bit-sliced table of slices.h.
//
// 64 bytes of eight rows become words again. Four rows have 16 sums, one of which a query's four bits select: a query
// needs one addition in place of four (V. Arlazarov et al., On economical construction of the transitive closure, 1970:
// the method of four Russians). Results are [64 bytes of the rows][query][64].

#pragma once

#include "slices.h"

namespace {

struct Piece {               // of the work
    const uint8_t* tile[2];  // the first group's vectors in two tiles that follow each other
    int width[2];            // of the tiles; the second may be 0
    int groups;              // at most 8
    const uint8_t* bits;     // the first query's for the first group
    int64_t count;           // of queries
    Line* sums;
};

// V is a register of words.
template <typename V, bool Xor>
BODY void sum_words(const Piece& p) {
    constexpr int parts = int(64 / sizeof(V));
    Eight rows[8][8] = {};  // of each group: byte column 8 v + j of its rows in word v of row j, then turned to rows
    for (int g = 0; g < p.groups; g++)
        for (int t = 0, v = 0; t < 2; t++)
            for (int i = 0; i < p.width[t]; i++, v++)
                for (int j = 0; j < 8; j++)
                    memcpy((uint8_t*)&rows[g][j] + 8 * v, p.tile[t] + (g * p.width[t] + i) * 64 + 8 * j, 8);
    alignas(64) V sixteen[16][16][parts];
    for (int g = 0; g < p.groups; g++) {
        for (int j = 0; j < 8; j++) turn(rows[g][j]);
        exchange(rows[g]);
        for (int half = 0; half < 2; half++) {
            auto& sum = sixteen[2 * g + half];
            for (int k = 0; k < parts; k++) sum[0][k] = V{};
            for (int i = 1; i < 16; i++)
                for (int k = 0; k < parts; k++) {
                    const Eight& lowest = rows[g][4 * half + __builtin_ctz(unsigned(i))];
                    V row;
                    memcpy(&row, (const uint8_t*)&lowest + k * sizeof row, sizeof row);
                    sum[i][k] = Xor ? sum[i & (i - 1)][k] ^ row : sum[i & (i - 1)][k] + row;
                }
        }
    }
    for (int64_t q = 0; q < p.count; q++) {
        uint64_t bits;
        memcpy(&bits, p.bits + q * kStride, 8);
        V sum[parts];
        memcpy(sum, &p.sums[q], 64);
        const auto add = [&](int i) INLINE {
            const auto& chosen = sixteen[i][bits >> (4 * i) & 15];
            for (int k = 0; k < parts; k++) sum[k] = Xor ? sum[k] ^ chosen[k] : sum[k] + chosen[k];
        };
        if (p.groups == 8) {
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) add(i);
        } else {
            for (int i = 0; i < 2 * p.groups; i++) add(i);
        }
        memcpy(&p.sums[q], sum, 64);
    }
}

// Words of `width` bits; width 0 is XOR.
template <class Target>
BODY void sum(Target, const Piece& p, int width) {
    switch (width) {
        case 0: return sum_words<Vector<uint64_t, Target>, true>(p);
        case 8: return sum_words<Vector<uint8_t, Target>, false>(p);
        case 16: return sum_words<Vector<uint16_t, Target>, false>(p);
        case 32: return sum_words<Vector<uint32_t, Target>, false>(p);
        default: return sum_words<Vector<uint64_t, Target>, false>(p);
    }
}

// Blocks first to last.
void add_sums(const Shape& s, const uint8_t* table, const Queries& queries, int width, int64_t first, int64_t last,
              Line* sums) {
    Selections selections(queries);
    for (int64_t start = first; start < last; start += kBlocks) {
        const int64_t blocks = least(kBlocks, last - start);
        const uint8_t* const bits = selections.read(start, blocks);
        for (int64_t block = start; block < start + blocks; block++)
            for (int64_t tile = 0; tile < s.tiles(); tile += 2)
                for (int64_t group = 0; group < s.groups_of(block); group += 8) {
                    Piece p = {};
                    for (int t = 0; t < 2 && tile + t < s.tiles(); t++) {
                        p.tile[t] = table + 64 * s.line(block, tile + t, group);
                        p.width[t] = s.width_of(tile + t);
                    }
                    p.groups = int(least(8, s.groups_of(block) - group));
                    p.bits = bits + (block - start) * kLeafBytes + group;
                    p.count = queries.count;
                    p.sums = sums + tile / 2 * queries.count;
                    dispatch(OVERLOADS(sum), p, width);
                }
    }
}

template <typename Word, bool Xor>
void merge_body(Line* sums, const Line* other, int64_t lines) {
    for (int64_t i = 0; i < lines; i++)
        for (size_t at = 0; at < 64; at += sizeof(Word)) {
            Word a, b;
            memcpy(&a, sums[i].byte + at, sizeof a);
            memcpy(&b, other[i].byte + at, sizeof b);
            a = Word(Xor ? a ^ b : a + b);
            memcpy(sums[i].byte + at, &a, sizeof a);
        }
}

// Adds the sums of another thread.
void merge_words(Line* sums, const Line* other, int64_t lines, int width) {
    switch (width) {
        case 0: return merge_body<uint64_t, true>(sums, other, lines);
        case 8: return merge_body<uint8_t, false>(sums, other, lines);
        case 16: return merge_body<uint16_t, false>(sums, other, lines);
        case 32: return merge_body<uint32_t, false>(sums, other, lines);
        default: return merge_body<uint64_t, false>(sums, other, lines);
    }
}

void give_sums(const Shape& s, const Line* sums, int64_t count, uint8_t* out) {
    for (int64_t q = 0; q < count; q++)
        for (int64_t at = 0; at < s.row_bytes; at += 64)
            memcpy(out + q * s.row_bytes + at, &sums[at / 64 * count + q], size_t(least(64, s.row_bytes - at)));
}

}  // namespace

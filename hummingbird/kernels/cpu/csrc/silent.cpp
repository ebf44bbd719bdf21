// Silent correlated transfers: fast versions of reference/cot.py's trees and code; kernels/cot.py has the equations.
//
// A level's left children replace their parents, its right children go behind them: both are written in order. The hash
// is that of garbled circuits (garble.h), with one key for a tree. A path is secret: the node beside it and the leaf at
// its end are corrected by masks over all nodes of a level. What the code reads of its table is public.

#include "garble.h"

namespace {

constexpr int kMostDepth = 13;
constexpr int kStep = 2 * kTile;  // nodes whose children are made at once
constexpr int kField = 21;               // bits between the numbers of a word; an output has ten numbers
constexpr int kOutputs = kTile;          // whose offsets are drawn at once

struct OneKey {
    uint64_t key[2];
    BODY int count() const { return 1; }
    BODY void four(int64_t number, int, uint64_t (*keys)[2]) const {
        for (int j = 0; j < 4; j++) keys[j][0] = key[0] ^ uint64_t(number), keys[j][1] = key[1];
    }
};

// ---- the code

struct Code {
    const uint64_t* table;
    const uint64_t* key;
    int64_t first;  // number of the first output
    int log_table;
};

// Where the blocks of kOutputs outputs are in the table, in bytes: by words of the draw, four for an output. The first
// two numbers of a word are side by side in 32 bits each: a table has 2^25 bytes at most.
struct Offsets {
    alignas(64) uint64_t two[4 * kOutputs], third[4 * kOutputs];
};

template <class Target>
BODY void draw_offsets(Target target, const RoundKeys& keys, const Code& code, uint64_t output, Offsets& offsets) {
    using R = Register<Target>;
    const uint64_t mask = (uint64_t(1) << code.log_table) - 1;
    Blocks<R> x[2], y[2];
    alignas(64) uint64_t counters[4 * kOutputs];
    for (int t = 0; t < 2 * kOutputs; t++) counters[2 * t] = 2 * output + uint64_t(t), counters[2 * t + 1] = 0;
    memcpy(x, counters, sizeof x);
    hash_sigma<2>(target, keys, 0, x, y);
    for (int i = 0; i < 2; i++) EACH(R) x[i].v[j] = (y[i].v[j] & mask) << 4 | (y[i].v[j] >> kField & mask) << 36;
    memcpy(offsets.two, x, sizeof x);
    for (int i = 0; i < 2; i++) EACH(R) x[i].v[j] = (y[i].v[j] >> 2 * kField & mask) << 4;
    memcpy(offsets.third, x, sizeof x);
}

// Adds the code's sums to n outputs, of which the first one has this number. An output reads at most 13 words, and none
// depends on another one, so that the processor has the reads of several outputs on their way: prefetches would only
// take time.
template <class Target>
BODY void encode(Target target, const Code& code, int64_t number, int64_t n, uint64_t* outputs) {
    RoundKeys keys;
    schedule(target, OneKey{{code.key[0], code.key[1]}}, 0, keys);
    Offsets offsets[2];
    draw_offsets(target, keys, code, uint64_t(number), offsets[0]);
    for (int64_t at = 0; at < n; at += kOutputs) {
        const Offsets& here = offsets[at / kOutputs % 2];
        if (at + kOutputs < n)
            draw_offsets(target, keys, code, uint64_t(number + at + kOutputs), offsets[(at / kOutputs + 1) % 2]);
        const int m = int(n - at < kOutputs ? n - at : kOutputs);
        for (int i = 0; i < m; i++) {
            Two sum, block;
            memcpy(&sum, outputs + 2 * (at + i), 16);
            const auto add = [&](uint64_t offset) {
                memcpy(&block, (const uint8_t*)code.table + offset, 16);
                sum ^= block;
            };
            const uint64_t *const two = here.two + 4 * i, *const third = here.third + 4 * i;
#pragma GCC unroll 3
            for (int w = 0; w < 3; w++) {
                add(uint32_t(two[w]));
                add(two[w] >> 32);
                add(third[w]);
            }
            add(uint32_t(two[3]));
            memcpy(outputs + 2 * (at + i), &sum, 16);
        }
    }
}

// ---- trees

struct Fix {  // XORed to the node at this place
    uint64_t word[2];
    uint64_t place;
};

template <class R>
struct Fixing {
    Blocks<R> numbers;
    R word, place;
    BODY explicit Fixing(const Fix& fix) {
        uint64_t words[2 * kTile], one[sizeof(R) / 8];
        for (int i = 0; i < 2 * kTile; i++) words[i] = uint64_t(i / 2);
        for (int i = 0; i < int(sizeof(R) / 8); i++) one[i] = fix.word[i % 2];
        memcpy(&numbers, words, sizeof words);
        memcpy(&word, one, sizeof one);
        place = R{} + fix.place;
    }
    BODY void apply(uint64_t at, Blocks<R>& x) const {  // to nodes at, at + 1, ..
        EACH(R) x.v[j] ^= (R)(numbers.v[j] + at == place) & word;
    }
};

template <class R>
BODY void fold_blocks(const Blocks<R>& sum, uint64_t* out) {
    uint64_t words[2 * kTile];
    memcpy(words, &sum, sizeof words);
    out[0] = out[1] = 0;
    for (int i = 0; i < kTile; i++) out[0] ^= words[2 * i], out[1] ^= words[2 * i + 1];
}

// The children of n nodes, in place. left: the sum of the left children; parents: of the nodes.
template <bool fixed, class Target>
BODY void grow_level(Target target, const RoundKeys& keys, uint64_t* nodes, int n, const Fix& fix, uint64_t* left,
                     uint64_t* parents) {
    using R = Register<Target>;
    const Fixing<R> fixing(fix);
    Blocks<R> lefts = {}, all = {};
    for (int at = 0; at < n; at += kStep) {
        Blocks<R> x[2] = {}, in[2], y[2];
        const size_t bytes = 16 * size_t(n - at < kStep ? n - at : kStep), rest = sizeof x - bytes;
        memcpy(x, nodes + 2 * at, rest ? bytes : sizeof x);
        for (int i = 0; i < 2; i++) {
            if (fixed) fixing.apply(uint64_t(at + kTile * i), x[i]);
            sigma(x[i], in[i]);
        }
        hash_sigma<2>(target, keys, 0, in, y);
        if (rest) memset((uint8_t*)x + bytes, 0, rest), memset((uint8_t*)y + bytes, 0, rest);
        for (int i = 0; i < 2; i++) EACH(R) {
            lefts.v[j] ^= y[i].v[j];
            if (fixed) all.v[j] ^= x[i].v[j];
            x[i].v[j] ^= y[i].v[j];
        }
        memcpy(nodes + 2 * at, y, rest ? bytes : sizeof x);
        memcpy(nodes + 2 * (n + at), x, rest ? bytes : sizeof x);
    }
    fold_blocks(lefts, left);
    if (fixed) fold_blocks(all, parents);
}

// sums: of each level; null: the trees become outputs.
template <class Target>
BODY void grow_trees(Target target, const uint64_t* roots, const uint64_t* delta, const uint64_t* key, int64_t first,
                     int64_t trees, int depth, uint64_t* sums, Code code, uint64_t* outputs) {
    alignas(64) uint64_t scratch[2 << kMostDepth];
    for (int64_t tree = 0; tree < trees; tree++) {
        RoundKeys keys;
        schedule(target, OneKey{{key[0], key[1]}}, first + tree, keys);
        uint64_t* const nodes = sums ? scratch : outputs + (tree << (depth + 1));
        uint64_t sum[2] = {roots[2 * tree], roots[2 * tree + 1]}, unused[2];
        for (int i = 0; i < 2; i++) nodes[i] = sum[i], nodes[2 + i] = sum[i] ^ delta[i];
        for (int level = 0;; level++) {
            if (sums) memcpy(sums + 2 * (tree * depth + level), sum, sizeof sum);
            if (level == depth - 1) break;
            grow_level<false>(target, keys, nodes, 2 << level, Fix{}, sum, unused);
        }
        if (sums) continue;
        for (int64_t i = 0; i < 2 << depth; i += 2) nodes[i] &= ~uint64_t(1);
        encode(target, code, code.first + (tree << depth), int64_t(1) << depth, nodes);
    }
}

template <class Target>
BODY void puncture_trees(Target target, const int64_t* paths, const uint64_t* others, const uint64_t* key,
                         int64_t first, int64_t trees, int depth, Code code, uint64_t* outputs) {
    using R = Register<Target>;
    for (int64_t tree = 0; tree < trees; tree++) {
        RoundKeys keys;
        schedule(target, OneKey{{key[0], key[1]}}, first + tree, keys);
        uint64_t* const nodes = outputs + (tree << (depth + 1));
        const uint64_t* const other = others + 2 * tree * depth;
        const uint64_t path = uint64_t(paths[tree]);
        memset(nodes, 0, 32);
        uint64_t left[2], all[2] = {};
        Fix fix = {{other[0], other[1]}, (path & 1) ^ 1};
        for (int level = 1; level < depth; level++) {
            grow_level<true>(target, keys, nodes, 1 << level, fix, left, all);
            const uint64_t side = (path >> level & 1) ^ 1;
            for (int i = 0; i < 2; i++) fix.word[i] = other[2 * level + i] ^ left[i] ^ (all[i] & (0 - side));
            fix.place = (path & ((uint64_t(1) << level) - 1)) | side << level;
        }
        // The sum of all leaves, which lack their lowest bits, makes the leaf on the path that of the sender ^ delta.
        fix.word[0] &= ~uint64_t(1);
        const Fix last = {{((all[0] ^ fix.word[0]) & ~uint64_t(1)) | 1, all[1] ^ fix.word[1]}, path};
        const Fixing<R> beside(fix), on(last);
        const int64_t n = int64_t(1) << depth;
        for (int64_t at = 0; at < n; at += kTile) {
            const size_t bytes = 16 * size_t(n - at < kTile ? n - at : kTile);
            Blocks<R> x = {};
            memcpy(&x, nodes + 2 * at, bytes);
            EACH(R) x.v[j] &= ~(kLow<R> & 1);
            beside.apply(uint64_t(at), x);
            on.apply(uint64_t(at), x);
            memcpy(nodes + 2 * at, &x, bytes);
        }
        encode(target, code, code.first + (tree << depth), n, nodes);
    }
}

}  // namespace

// roots: of the trees, two words each. keys: of the trees, and of the code. sums: `depth` blocks of each tree.
API void hb_cot_tree_sums(const uint64_t* roots, const uint64_t* delta, const uint64_t* keys, int64_t first,
                          int64_t trees, int depth, uint64_t* sums) {
    dispatch<AesTargets>(OVERLOADS(grow_trees), roots, delta, keys, first, trees, depth, sums, Code{},
                         (uint64_t*)nullptr);
}

// table: 2^log_table blocks. output: number of the first one. outputs: 2^depth blocks of each tree.
API void hb_cot_send_silent(const uint64_t* roots, const uint64_t* delta, const uint64_t* keys, int64_t first,
                            int64_t trees, int depth, const uint64_t* table, int log_table, int64_t output,
                            uint64_t* outputs) {
    dispatch<AesTargets>(OVERLOADS(grow_trees), roots, delta, keys, first, trees, depth, (uint64_t*)nullptr,
                         Code{table, keys + 2, output, log_table}, outputs);
}

// others: for each level of a tree the sum beside the path.
API void hb_cot_receive_silent(const int64_t* paths, const uint64_t* others, const uint64_t* keys, int64_t first,
                               int64_t trees, int depth, const uint64_t* table, int log_table, int64_t output,
                               uint64_t* outputs) {
    dispatch<AesTargets>(OVERLOADS(puncture_trees), paths, others, keys, first, trees, depth,
                         Code{table, keys + 2, output, log_table}, outputs);
}

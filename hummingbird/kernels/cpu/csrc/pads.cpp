// Pads of oblivious transfers: a fast version of reference/cot.py; kernels/cot.py has the equation.
//
// The hash is that of garbled circuits without its sigma, and the 16 transfers of a tile share its key (garble.h). No
// branch and no memory address depends on a key of a transfer.

#include "garble.h"

namespace {

constexpr int kTiles = 64;  // whose round keys are made at once

struct TileKeys {  // of one block of pads, for so many tiles
    uint64_t key[2];
    int block, tiles;
    BODY int count() const { return tiles; }
    BODY void four(int64_t tile, int first, uint64_t (*keys)[2]) const {
        for (int j = 0; j < 4; j++) {
            keys[j][0] = key[0] ^ (uint64_t(tile + first + j) << 20 | uint64_t(block));
            keys[j][1] = key[1];
        }
    }
};

static_assert(kTiles <= kMostKeys / 4 * 4, "RoundKeys has room for them");

// The low words of m blocks to out, the high ones to out + n.
template <class R>
BODY void store_words(Blocks<R>& x, int64_t n, int m, uint64_t* out) {
    Words<R> words;
    for (int half = 0; half < 2; half++, out += n) {
        low_words(x, words);
        if (m == kTile)
            memcpy(out, &words, sizeof words);
        else
            memcpy(out, &words, 8 * size_t(m));
        EACH(R) swap_words(x.v[j], x.v[j]);
    }
}

// both: whether the pads of labels ^ delta follow those of the labels.
template <bool both, class Target>
BODY void make_pads(Target target, const uint64_t* labels, const uint64_t* delta, const uint64_t* key, int64_t tile,
                    int block, int64_t n, uint64_t* out) {
    using R = Register<Target>;
    constexpr int kinds = both ? 2 : 1;
    RoundKeys keys;
    Blocks<R> offset = {}, x[kinds], y[kinds];
    if (both) copies(delta, offset);
    for (int64_t first = 0; first < n; first += kTile * kTiles) {
        const int64_t left = (n - first + kTile - 1) / kTile;
        const int tiles = int(left < kTiles ? left : kTiles);
        schedule(target, TileKeys{{key[0], key[1]}, block, tiles}, tile + first / kTile, keys);
        for (int i = 0; i < tiles; i++) {
            const int64_t at = first + kTile * i;
            const int m = int(n - at < kTile ? n - at : kTile);
            if (m == kTile)
                memcpy(x, labels + 2 * at, sizeof *x);
            else
                memset(x, 0, sizeof *x), memcpy(x, labels + 2 * at, 16 * size_t(m));
            if (both) EACH(R) x[kinds - 1].v[j] = x[0].v[j] ^ offset.v[j];
            hash_sigma<kinds>(target, keys, i, x, y);
            for (int kind = 0; kind < kinds; kind++) store_words(y[kind], n, m, out + 2 * n * kind + at);
        }
    }
}

template <class Target>
BODY void pads(Target target, const uint64_t* labels, const uint64_t* delta, const uint64_t* key, int64_t tile,
               int block, int64_t n, uint64_t* out) {
    if (delta)
        make_pads<true>(target, labels, delta, key, tile, block, n, out);
    else
        make_pads<false>(target, labels, delta, key, tile, block, n, out);
}

}  // namespace

// labels: n of two words. delta: two words, or null. out: the low word of each label's pad, then the high word of each;
// with delta then those of the labels ^ delta.
API void hb_cot_pads(const uint64_t* labels, const uint64_t* delta, const uint64_t* key, int64_t tile, int block,
                     int64_t n, uint64_t* out) {
    dispatch<AesTargets>(OVERLOADS(pads), labels, delta, key, tile, block, n, out);
}

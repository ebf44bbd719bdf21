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
            keys[j][0] = key[0] ^ (uint64_t(tile + first + j) << 8 | uint64_t(block));
            keys[j][1] = key[1];
        }
    }
};

static_assert(kTiles <= kMostKeys / 4 * 4, "RoundKeys has room for them");

template <class Target>
BODY void make_pads(Target target, const uint64_t* labels, const uint64_t* delta, const uint64_t* key, int64_t tile,
                    int block, int64_t n, uint64_t* out) {
    RoundKeys keys;
    for (int64_t first = 0; first < n; first += kTile * kTiles) {
        const int64_t left = (n - first + kTile - 1) / kTile;
        const int tiles = int(left < kTiles ? left : kTiles);
        schedule(target, TileKeys{{key[0], key[1]}, block, tiles}, tile + first / kTile, keys);
        for (int i = 0; i < tiles; i++) {
            const int64_t at = first + kTile * i;
            const int m = int(n - at < kTile ? n - at : kTile);
            alignas(64) uint64_t words[2 * kTile] = {};
            memcpy(words, labels + 2 * at, 16 * size_t(m));
            for (int t = 0; t < 2 * kTile; t++) words[t] ^= delta[t % 2];
            Blocks<Register<Target>> x, y;
            memcpy(&x, words, sizeof words);
            hash_sigma<1>(target, keys, i, &x, &y);
            memcpy(words, &y, sizeof words);
            for (int t = 0; t < m; t++) out[at + t] = words[2 * t];
            for (int t = 0; t < m; t++) out[n + at + t] = words[2 * t + 1];
        }
    }
}

}  // namespace

// labels: n of two words. delta: two words, XORed to each. out: the low word of each pad, then the high word of each.
API void hb_cot_pads(const uint64_t* labels, const uint64_t* delta, const uint64_t* key, int64_t tile, int block,
                     int64_t n, uint64_t* out) {
    dispatch<AesTargets>(OVERLOADS(make_pads), labels, delta, key, tile, block, n, out);
}

// Our function by Impala's circuit, for scripts/bench/garble.py: relu(s + p) + s_y mod 2^k' by three rows of ANDs, with
// the hash, the tiles and the half-gates of our own. The garbler knows s and the mask s_y when it garbles.
//
//     x = s + p        y_i = x_i b, b = not x_{w-1}, i < w - 1        z = y + s_y, where y_i = 0 from w - 1 on
//
// Of each sum, the first gate is a garbler's half, and so are those of z where y_i = 0: the carry is c_i s_{y,i} there.
// A tile's tables: blocks of the gates, gate after gate, then for each bit of z two bytes, the colours of the labels of
// 0 in the 16 instances. Every tile is full.

#include "garble.h"

namespace {

struct Job {
    int width, ring;
    uint64_t key[2];
    const uint64_t *delta, *labels, *shares, *masks;
    uint8_t* tables;
    uint64_t* results;
};

constexpr int kMostRing = 32;

BODY int64_t tile_bytes(int width, int ring) { return 256 * (6 * (width - 1) - 2 + ring - width) + 2 * ring; }

template <class R>
BODY uint16_t bits_of(const Blocks<R>& x) {
    uint64_t words[2 * kTile];
    memcpy(words, &x, sizeof words);
    unsigned bits = 0;
    for (int t = 0; t < kTile; t++) bits |= unsigned(words[2 * t] & 1) << t;
    return uint16_t(bits);
}

// A known number's bit, 0 or R, in each instance.
template <class R>
BODY void known_bit(const uint64_t* numbers, int i, const Blocks<R>& delta, Blocks<R>& out) {
    uint64_t pairs[kTile][2];
    for (int t = 0; t < kTile; t++) pairs[t][0] = pairs[t][1] = 0 - (numbers[t] >> i & 1);
    memcpy(&out, pairs, sizeof out);
    EACH(R) out.v[j] &= delta.v[j];
}

// A sum with a number that the garbler knows: replaces the labels of each bit. The wires from `open` on are 0.
template <bool garbles, class Target, class R, class P>
BODY void add(Target target, int width, int open, const RoundKeys& keys, int place, const Offset<R>& delta,
              const uint64_t* numbers, Blocks<R>* wires, P& table) {
    Blocks<R> carry = {};
    const Blocks<R> none = {};
    for (int i = 0; i < width; i++) {
        Blocks<R> a, b, choice, product = {}, bit = {};
        if constexpr (garbles) known_bit(numbers, i, delta.once, bit);
        EACH(R) {
            a.v[j] = wires[i].v[j] ^ carry.v[j];
            b.v[j] = bit.v[j] ^ carry.v[j];
            wires[i].v[j] = a.v[j] ^ bit.v[j];
        }
        if (i == width - 1) break;
        const bool half = i == 0 || i >= open;
        if constexpr (garbles) {
            colours(b, choice);
            EACH(R) choice.v[j] = half ? bit.v[j] : choice.v[j] & delta.once.v[j];
            garble_half(target, keys, place++, delta, a, choice, none, product, kTile, table);
            if (!half) garble_half(target, keys, place++, delta, b, a, a, product, kTile, table);
        } else {
            evaluate_half(target, keys, place++, a, none, product, kTile, table);
            if (!half) evaluate_half(target, keys, place++, b, a, product, kTile, table);
        }
        EACH(R) carry.v[j] = i < open ? carry.v[j] ^ product.v[j] : product.v[j];
    }
}

template <bool garbles, class Target, class P>
BODY void run_tile(Target target, const Job& job, const RoundKeys& keys, int64_t first, P table) {
    using R = Register<Target>;
    const int gates = job.width - 1;
    Blocks<R> wires[kMostRing], positive, choice;
    const Blocks<R> none = {};
    for (int t = 0; t < kTile; t++)
        for (int i = 0; i < job.width; i++)
            memcpy((uint8_t*)&wires[i] + 16 * t, job.labels + 2 * ((first + t) * job.width + i), 16);
    const Offset<R> delta(job.delta);
    add<garbles>(target, job.width, job.width, keys, 0, delta, job.shares + first, wires, table);
    positive = wires[gates];
    if constexpr (garbles) EACH(R) positive.v[j] ^= delta.once.v[j];
    colours(positive, choice);
    EACH(R) choice.v[j] &= delta.once.v[j];
    for (int i = 0; i < gates; i++) {
        Blocks<R> product = {};
        const int place = 2 * (gates + i);
        if constexpr (garbles) {
            garble_half(target, keys, place, delta, wires[i], choice, none, product, kTile, table);
            garble_half(target, keys, place + 1, delta, positive, wires[i], wires[i], product, kTile, table);
        } else {
            evaluate_half(target, keys, place, wires[i], none, product, kTile, table);
            evaluate_half(target, keys, place + 1, positive, wires[i], product, kTile, table);
        }
        wires[i] = product;
    }
    for (int i = gates; i < job.ring; i++) wires[i] = none;
    add<garbles>(target, job.ring, gates, keys, 4 * gates, delta, job.masks + first, wires, table);
    for (int i = 0; i < job.ring; i++, table += 2) {
        const uint16_t colour = bits_of(wires[i]);
        if constexpr (garbles) {
            memcpy(table, &colour, 2);
        } else {
            uint16_t zeros;
            memcpy(&zeros, table, 2);
            for (int t = 0; t < kTile; t++)
                job.results[first + t] |= uint64_t((colour ^ zeros) >> t & 1) << i;
        }
    }
}

template <class Target>
BODY void run(Target target, const Job& job, int64_t tiles, bool garbles) {
    const Numbers numbers{5 * (job.width - 1) + job.ring, 0, {job.key[0], job.key[1]}};
    RoundKeys keys;
    for (int64_t i = 0; i < tiles; i++) {
        schedule(target, numbers, i, keys);
        uint8_t* const table = job.tables + tile_bytes(job.width, job.ring) * i;
        if (garbles) run_tile<true>(target, job, keys, kTile * i, table);
        else run_tile<false>(target, job, keys, kTile * i, (const uint8_t*)table);
    }
}

}  // namespace

API int64_t adders_tile_bytes(int width, int ring) { return tile_bytes(width, ring); }

// Garbles with `results` null, else evaluates, into zeros. width < ring, 5 (width - 1) + ring <= 70.
API void adders_run(int width, int ring, const uint64_t* key, int64_t tiles, const uint64_t* delta, const uint64_t* labels,
                    const uint64_t* shares, const uint64_t* masks, uint8_t* tables, uint64_t* results) {
    const Job job{width, ring, {key[0], key[1]}, delta, labels, shares, masks, tables, results};
    dispatch<AesTargets>(OVERLOADS(run), job, tiles, results == nullptr);
}

// Garbled ReLUs: the fast twins of reference/garble.py; kernels/garble.py has the equations and the format. A tile of 16
// instances is computed side by side, every block of it as Blocks.
//
// Nothing branches on a label, a share or a mask, and no memory is looked up at such a place.

#include "garble.h"
#include "threads.h"

API void hb_pack_words(const uint64_t* x, int64_t n, int width, uint8_t* out);
API void hb_open_words(const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out);

namespace {

constexpr int kMostWords = 3 * (kMostWidth - 1) + 1;

struct Circuit {
    int relu, width, ring, model;  // model: the garbler's bits have labels
    BODY int gates() const { return 2 * (width - 1); }
    BODY int rows() const { return relu ? width - 1 : width; }
    BODY int blocks() const { return gates() - !model; }
    BODY int words() const { return rows() * (relu ? 3 : 1) + !model; }
    BODY int64_t bytes(int m) const { return 16 * blocks() * m + (int64_t(words()) * ring * m + 7) / 8; }
    BODY uint64_t weight(int i) const { return i < width - 1 ? uint64_t(1) << i : -(uint64_t(1) << i); }
};

struct Job {
    Circuit circuit;
    uint64_t key[2];
    int64_t tile, n;
    const uint64_t *delta, *labels, *own, *shares, *masks;  // what the job has; else null
    uint8_t* tables;
    uint64_t* results;
};

// ---- blocks of a tile

#define EACH(R) for (int j = 0; j < Blocks<R>::kCount; j++)

// The words of each block in the other order: (l|r) -> (r|l).
#if defined(__clang__)
BODY void swap_words(const Two& x, Two& y) { y = __builtin_shufflevector(x, x, 1, 0); }
BODY void swap_words(const Eight& x, Eight& y) { y = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6); }
#else
BODY void swap_words(const Two& x, Two& y) { y = __builtin_shuffle(x, Two{1, 0}); }
BODY void swap_words(const Eight& x, Eight& y) { y = __builtin_shuffle(x, kLane ^ 1); }
#endif

template <class R>
constexpr R kLow{};  // ones in the low word of each block
template <>
constexpr Two kLow<Two> = {~uint64_t(0), 0};
template <>
constexpr Eight kLow<Eight> = 0 - ((kLane & 1) ^ 1);

template <class R>
BODY void sigma(const Blocks<R>& x, Blocks<R>& y) {
    EACH(R) {
        R swapped;
        swap_words(x.v[j], swapped);
        y.v[j] = swapped ^ (x.v[j] & ~kLow<R>);
    }
}

// All ones where the colour is 1, else 0.
template <class R>
BODY void colours(const Blocks<R>& x, Blocks<R>& y) {
    EACH(R) {
        const R bit = x.v[j] & kLow<R> & 1;
        R swapped;
        swap_words(bit, swapped);
        y.v[j] = 0 - (bit | swapped);
    }
}

template <class R>
BODY void low_words(const Blocks<R>& x, uint64_t* low) {
    uint64_t words[2 * kTile];
    memcpy(words, &x, sizeof words);
    for (int t = 0; t < kTile; t++) low[t] = words[2 * t];
}

template <class R>
BODY void copies(const uint64_t* block, Blocks<R>& x) {
    for (int t = 0; t < kTile; t++) memcpy((uint8_t*)&x + 16 * t, block, 16);
}

// Labels of m instances, wire after wire; those that are not there are 0.
template <class R>
BODY void read_labels(const uint64_t* labels, int m, int width, Blocks<R>* wires) {
    if (m < kTile) memset(wires, 0, size_t(width) * sizeof *wires);
    for (int t = 0; t < m; t++)
        for (int i = 0; i < width; i++) memcpy((uint8_t*)&wires[i] + 16 * t, labels + 2 * (t * width + i), 16);
}

// Words of all 16 instances to those of m, and into bits; and back.
BODY void pack(const Circuit& c, int m, uint64_t (*words)[kTile], uint8_t* out) {
    uint64_t* const flat = words[0];
    if (m < kTile)
        for (int i = 1; i < c.words(); i++) memmove(flat + m * i, words[i], size_t(m) * 8);
    hb_pack_words(flat, c.words() * m, c.ring, out);
}

BODY void unpack(const Circuit& c, int m, const uint8_t* in, uint64_t (*words)[kTile]) {
    uint64_t* const flat = words[0];
    hb_open_words(&in, 1, c.words() * m, c.ring, flat);
    if (m < kTile)
        for (int i = c.words() - 1; i > 0; i--) memmove(words[i], flat + m * i, size_t(m) * 8);
}

// ---- garbling

template <class Target>
BODY void garble_tile(Target target, const Job& job, const RoundKeys& keys, int64_t first, int m, uint8_t* out) {
    using R = Register<Target>;
    using B = Blocks<R>;
    const Circuit& c = job.circuit;
    B delta, turned, twice;  // R, sigma(R), sigma(sigma(R))
    copies(job.delta, delta);
    sigma(delta, turned);
    sigma(turned, twice);

    B wires[kMostWidth], own[kMostWidth], shares;  // of the garbler: labels, or shares in both words of a block
    read_labels(job.labels + 2 * c.width * first, m, c.width, wires);
    if (c.model) {
        read_labels(job.own + 2 * c.width * first, m, c.width, own);
    } else {
        uint64_t pairs[kTile][2] = {};
        for (int t = 0; t < m; t++) pairs[t][0] = pairs[t][1] = job.shares[first + t];
        memcpy(&shares, pairs, sizeof shares);
        for (int i = 0; i < c.width; i++) EACH(R) own[i].v[j] = (0 - (shares.v[j] >> i & 1)) & delta.v[j];
    }

    B carry = {};
    for (int i = 0; i < c.width; i++) {
        B a, b, x[2], y[2], a_colour, b_colour, table;
        EACH(R) {
            a.v[j] = wires[i].v[j] ^ carry.v[j];
            b.v[j] = own[i].v[j] ^ carry.v[j];
            wires[i].v[j] = a.v[j] ^ own[i].v[j];
        }
        if (i == c.width - 1) break;
        const bool known = i == 0 && !c.model;
        colours(a, a_colour);
        colours(b, b_colour);
        sigma(a, x[0]);
        EACH(R) x[1].v[j] = x[0].v[j] ^ turned.v[j];
        hash_sigma<2>(target, keys, 2 * i, x, y);
        EACH(R) {
            table.v[j] = y[0].v[j] ^ y[1].v[j] ^ (known ? own[0].v[j] : b_colour.v[j] & delta.v[j]);
            carry.v[j] ^= y[0].v[j] ^ (a_colour.v[j] & table.v[j]);
        }
        memcpy(out, &table, size_t(m) * 16);
        out += 16 * m;
        if (known) continue;
        sigma(b, x[0]);
        EACH(R) x[1].v[j] = x[0].v[j] ^ turned.v[j];
        hash_sigma<2>(target, keys, 2 * i + 1, x, y);
        EACH(R) {
            table.v[j] = y[0].v[j] ^ y[1].v[j] ^ a.v[j];
            carry.v[j] ^= y[0].v[j] ^ (b_colour.v[j] & (y[0].v[j] ^ y[1].v[j]));
        }
        memcpy(out, &table, size_t(m) * 16);
        out += 16 * m;
    }

    // Rows: from the labels of colour 0, and the bits that these have.
    B positive, colour;
    uint64_t positive_bit[kTile], offset[kTile] = {};
    EACH(R) positive.v[j] = wires[c.width - 1].v[j] ^ delta.v[j];
    colours(positive, colour);
    low_words(colour, positive_bit);
    EACH(R) positive.v[j] ^= colour.v[j] & delta.v[j];
    sigma(positive, positive);
    alignas(64) uint64_t words[kMostWords][kTile];
    uint64_t(*word)[kTile] = words;
    for (int i = 0; i < c.rows(); i++) {
        B d, x[4], y[4];
        uint64_t bit[kTile], pad[4][kTile];
        colours(wires[i], colour);
        low_words(colour, bit);
        EACH(R) {
            d.v[j] = wires[i].v[j] ^ (colour.v[j] & delta.v[j]);
            if (c.relu) d.v[j] ^= positive.v[j];
        }
        sigma(d, x[0]);
        EACH(R) {
            x[1].v[j] = x[0].v[j] ^ turned.v[j];
            x[2].v[j] = x[0].v[j] ^ twice.v[j];
            x[3].v[j] = x[1].v[j] ^ twice.v[j];
        }
        if (c.relu) hash_sigma<4>(target, keys, c.gates() + i, x, y);
        else hash_sigma<2>(target, keys, c.gates() + i, x, y);
        const int places = c.relu ? 4 : 2;
        for (int q = 0; q < places; q++) low_words(y[q], pad[q]);
        const uint64_t weight = c.weight(i);
        for (int t = 0; t < kTile; t++) {  // `bit`, `positive_bit`: all ones where the label of colour 0 is one of 1
            const uint64_t both = c.relu ? positive_bit[t] : ~uint64_t(0);
            const uint64_t nu = pad[0][t] - (weight & bit[t] & both);
            offset[t] += nu;
            word[0][t] = (weight & ~bit[t] & both) + nu - pad[1][t];
            if (c.relu) {
                word[1][t] = (weight & bit[t] & ~both) + nu - pad[2][t];
                word[2][t] = (weight & ~bit[t] & ~both) + nu - pad[3][t];
            }
        }
        word += places - 1;
    }
    if (c.model) {
        const uint64_t low = (uint64_t(1) << c.ring) - 1;
        for (int t = 0; t < m; t++) job.results[first + t] = offset[t] & low;
    } else {
        for (int t = 0; t < m; t++) word[0][t] = 0 - job.masks[first + t] - offset[t];
    }
    pack(c, m, words, out);
}

// ---- evaluating

template <class Target>
BODY void evaluate_tile(Target target, const Job& job, const RoundKeys& keys, int64_t first, int m, uint8_t* in) {
    using R = Register<Target>;
    using B = Blocks<R>;
    const Circuit& c = job.circuit;
    B wires[kMostWidth], own[kMostWidth] = {};
    read_labels(job.labels + 2 * c.width * first, m, c.width, wires);
    if (c.model) read_labels(job.own + 2 * c.width * first, m, c.width, own);

    B carry = {};
    for (int i = 0; i < c.width; i++) {
        B a, b, x, y, colour, table = {};
        EACH(R) {
            a.v[j] = wires[i].v[j] ^ carry.v[j];
            b.v[j] = own[i].v[j] ^ carry.v[j];
            wires[i].v[j] = a.v[j] ^ own[i].v[j];
        }
        if (i == c.width - 1) break;
        colours(a, colour);
        sigma(a, x);
        hash_sigma<1>(target, keys, 2 * i, &x, &y);
        memcpy(&table, in, size_t(m) * 16);
        in += 16 * m;
        EACH(R) carry.v[j] ^= y.v[j] ^ (colour.v[j] & table.v[j]);
        if (i == 0 && !c.model) continue;
        colours(b, colour);
        sigma(b, x);
        hash_sigma<1>(target, keys, 2 * i + 1, &x, &y);
        memcpy(&table, in, size_t(m) * 16);
        in += 16 * m;
        EACH(R) carry.v[j] ^= y.v[j] ^ (colour.v[j] & (table.v[j] ^ a.v[j]));
    }

    B colour, positive = wires[c.width - 1];
    uint64_t v[kTile], total[kTile] = {};
    colours(positive, colour);
    low_words(colour, v);
    sigma(positive, positive);
    alignas(64) uint64_t words[kMostWords][kTile];
    unpack(c, m, in, words);
    const uint64_t(*word)[kTile] = words;
    for (int i = 0; i < c.rows(); i++) {
        B d = wires[i], x, y;
        uint64_t u[kTile], pad[kTile];
        colours(wires[i], colour);
        low_words(colour, u);
        if (c.relu) EACH(R) d.v[j] ^= positive.v[j];
        sigma(d, x);
        hash_sigma<1>(target, keys, c.gates() + i, &x, &y);
        low_words(y, pad);
        for (int t = 0; t < kTile; t++) {
            const uint64_t row = c.relu ? (word[0][t] & u[t] & ~v[t]) | (word[1][t] & ~u[t] & v[t]) |
                                              (word[2][t] & u[t] & v[t])
                                        : word[0][t] & u[t];
            total[t] += row + pad[t];
        }
        word += c.relu ? 3 : 1;
    }
    const uint64_t low = (uint64_t(1) << c.ring) - 1;
    for (int t = 0; t < m; t++) job.results[first + t] = (total[t] + (c.model ? 0 : word[0][t])) & low;
}

// ---- all tiles

template <class Target, class F>
BODY void each_tile(Target target, const Job& job, int64_t first, int64_t last, const F& run) {
    const Circuit& c = job.circuit;
    const Numbers numbers{c.gates(), c.rows(), {job.key[0], job.key[1]}};
    RoundKeys keys;
    for (int64_t i = first; i < last; i++) {
        schedule(target, numbers, job.tile + i, keys);
        const int64_t rest = job.n - kTile * i;
        run(keys, kTile * i, int(rest < kTile ? rest : kTile), job.tables + c.bytes(kTile) * i);
    }
}

template <class Target>
BODY void garble_tiles(Target target, const Job& job, int64_t first, int64_t last) {
    each_tile(target, job, first, last, [&](const RoundKeys& keys, int64_t at, int m, uint8_t* tables) INLINE {
        garble_tile(target, job, keys, at, m, tables);
    });
}

template <class Target>
BODY void evaluate_tiles(Target target, const Job& job, int64_t first, int64_t last) {
    each_tile(target, job, first, last, [&](const RoundKeys& keys, int64_t at, int m, uint8_t* tables) INLINE {
        evaluate_tile(target, job, keys, at, m, tables);
    });
}

}  // namespace

// With delta the tables are made, else they are evaluated. `own` is null where the garbler knows its shares, with
// `shares` and `masks` for garbling. results: the offsets, or the values; null where there are none.
API void hb_garble(int relu, int width, int ring, const uint64_t* key, int64_t tile, int64_t n, const uint64_t* delta,
                   const uint64_t* labels, const uint64_t* own, const uint64_t* shares, const uint64_t* masks,
                   uint8_t* tables, uint64_t* results, int threads) {
    const Job job{{relu, width, ring, own != nullptr}, {key[0], key[1]}, tile, n, delta, labels, own, shares, masks,
                  tables, results};
    const int64_t tiles = (n + kTile - 1) / kTile;
    share(tiles, threads, double(n) * width * (delta ? 12 : 6), [&](int64_t first, int64_t last) {
        if (delta) dispatch<AesTargets>(OVERLOADS(garble_tiles), job, first, last);
        else dispatch<AesTargets>(OVERLOADS(evaluate_tiles), job, first, last);
    });
}

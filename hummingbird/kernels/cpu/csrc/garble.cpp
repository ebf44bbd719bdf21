// Garbled circuits: fast versions of reference/garble.py; kernels/garble.py has the equations and the format. The 16
// instances of a tile are computed side by side; `Blocks` has one block of each.
//
// No branch and no memory address depends on a label, a share or a mask.

#include "garble.h"
#include "threads.h"

API void hb_pack_words(const uint64_t* x, int64_t n, int width, uint8_t* out);
API void hb_open_words(const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out);

namespace {

constexpr int kMostWords = 3 * (kMostWidth - 1) + 1;  // also where the last one is an offset, which is not packed

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

// Labels of m instances, wire after wire; labels of missing instances are 0.
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
    const Offset<R> delta(job.delta);

    B wires[kMostWidth], own[kMostWidth], shares;  // of the garbler: labels, or shares in both words of a block
    read_labels(job.labels + 2 * c.width * first, m, c.width, wires);
    if (c.model) {
        read_labels(job.own + 2 * c.width * first, m, c.width, own);
    } else {
        uint64_t pairs[kTile][2] = {};
        for (int t = 0; t < m; t++) pairs[t][0] = pairs[t][1] = job.shares[first + t];
        memcpy(&shares, pairs, sizeof shares);
        for (int i = 0; i < c.width; i++) EACH(R) own[i].v[j] = (0 - (shares.v[j] >> i & 1)) & delta.once.v[j];
    }

    B carry = {};
    const B none = {};
    for (int i = 0; i < c.width; i++) {
        B a, b, choice;
        EACH(R) {
            a.v[j] = wires[i].v[j] ^ carry.v[j];
            b.v[j] = own[i].v[j] ^ carry.v[j];
            wires[i].v[j] = a.v[j] ^ own[i].v[j];
        }
        if (i == c.width - 1) break;
        if (i == 0 && !c.model) {  // known
            garble_half(target, keys, 0, delta, a, own[0], none, carry, m, out);
            continue;
        }
        colours(b, choice);
        EACH(R) choice.v[j] &= delta.once.v[j];
        garble_half(target, keys, 2 * i, delta, a, choice, none, carry, m, out);
        garble_half(target, keys, 2 * i + 1, delta, b, a, a, carry, m, out);
    }

    // Rows, from the labels of colour 0 and their bits, as masks. Numbers are the low words of blocks; the high words
    // are not used.
    B positive, both, offset = {};  // both: of b
    EACH(R) positive.v[j] = wires[c.width - 1].v[j] ^ delta.once.v[j];
    colours(positive, both);
    EACH(R) positive.v[j] ^= both.v[j] & delta.once.v[j];
    sigma(positive, positive);
    alignas(64) uint64_t words[kMostWords][kTile];
    uint64_t(*word)[kTile] = words;
    const auto write = [&](const B& row) INLINE {
        Words<R> low;
        low_words(row, low);
        memcpy(*word++, &low, sizeof low);
    };
    for (int i = 0; i < c.rows(); i++) {
        B bit, d, x[4], pad[4], row;
        colours(wires[i], bit);
        EACH(R) {
            d.v[j] = wires[i].v[j] ^ (bit.v[j] & delta.once.v[j]);
            if (c.relu) d.v[j] ^= positive.v[j];
        }
        sigma(d, x[0]);
        EACH(R) {
            x[1].v[j] = x[0].v[j] ^ delta.turned.v[j];
            x[2].v[j] = x[0].v[j] ^ delta.twice.v[j];
            x[3].v[j] = x[1].v[j] ^ delta.twice.v[j];
        }
        if (c.relu) hash_sigma<4>(target, keys, c.gates() + i, x, pad);
        else hash_sigma<2>(target, keys, c.gates() + i, x, pad);
        const uint64_t weight = c.weight(i);
        if (!c.relu) EACH(R) both.v[j] = R{} - 1;
        EACH(R) {
            pad[0].v[j] -= weight & bit.v[j] & both.v[j];  // nu
            offset.v[j] += pad[0].v[j];
            row.v[j] = (weight & ~bit.v[j] & both.v[j]) + pad[0].v[j] - pad[1].v[j];
        }
        write(row);
        if (!c.relu) continue;
        EACH(R) row.v[j] = (weight & bit.v[j] & ~both.v[j]) + pad[0].v[j] - pad[2].v[j];
        write(row);
        EACH(R) row.v[j] = (weight & ~bit.v[j] & ~both.v[j]) + pad[0].v[j] - pad[3].v[j];
        write(row);
    }
    write(offset);
    uint64_t* const last = word[-1];
    const uint64_t low = (uint64_t(1) << c.ring) - 1;
    for (int t = 0; t < m; t++) {
        if (c.model) job.results[first + t] = last[t] & low;
        else last[t] = 0 - job.masks[first + t] - last[t];
    }
    pack(c, m, words, out);
}

// ---- evaluating

template <class Target>
BODY void evaluate_tile(Target target, const Job& job, const RoundKeys& keys, int64_t first, int m,
                        const uint8_t* in) {
    using R = Register<Target>;
    using B = Blocks<R>;
    const Circuit& c = job.circuit;
    B wires[kMostWidth], own[kMostWidth] = {};
    read_labels(job.labels + 2 * c.width * first, m, c.width, wires);
    if (c.model) read_labels(job.own + 2 * c.width * first, m, c.width, own);

    B carry = {};
    const B none = {};
    for (int i = 0; i < c.width; i++) {
        B a, b;
        EACH(R) {
            a.v[j] = wires[i].v[j] ^ carry.v[j];
            b.v[j] = own[i].v[j] ^ carry.v[j];
            wires[i].v[j] = a.v[j] ^ own[i].v[j];
        }
        if (i == c.width - 1) break;
        evaluate_half(target, keys, 2 * i, a, none, carry, m, in);
        if (i > 0 || c.model) evaluate_half(target, keys, 2 * i + 1, b, a, carry, m, in);
    }

    B colour, positive = wires[c.width - 1];
    Words<R> u, v, pad, total = {};
    colours(positive, colour);
    low_words(colour, v);
    sigma(positive, positive);
    alignas(64) uint64_t words[kMostWords][kTile];
    unpack(c, m, in, words);
    const uint64_t(*word)[kTile] = words;
    for (int i = 0; i < c.rows(); i++) {
        B d = wires[i], x, hashed;
        colours(wires[i], colour);
        low_words(colour, u);
        if (c.relu) EACH(R) d.v[j] ^= positive.v[j];
        sigma(d, x);
        hash_sigma<1>(target, keys, c.gates() + i, &x, &hashed);
        low_words(hashed, pad);
        Words<R> row[3];
        memcpy(row, word, (c.relu ? 3 : 1) * sizeof *row);
        for (int j = 0; j < Words<R>::kCount; j++) {
            R one = row[0].v[j] & u.v[j];
            if (c.relu) one = (one & ~v.v[j]) | (((row[1].v[j] & ~u.v[j]) | (row[2].v[j] & u.v[j])) & v.v[j]);
            total.v[j] += one + pad.v[j];
        }
        word += c.relu ? 3 : 1;
    }
    const uint64_t low = (uint64_t(1) << c.ring) - 1;
    uint64_t sums[kTile];
    memcpy(sums, &total, sizeof sums);
    for (int t = 0; t < m; t++) job.results[first + t] = (sums[t] + (c.model ? 0 : word[0][t])) & low;
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

// With delta garbles tables, without it evaluates them. `own` is null if the garbler knows its shares; garbling then
// needs `shares` and `masks`. results: the offsets, or the values; null if there are none.
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

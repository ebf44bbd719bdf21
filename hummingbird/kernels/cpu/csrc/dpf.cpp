// Distributed point functions: fast versions of reference/lookups.py; kernels/lookups.py has the key's format and the
// equations; dpf.h is the interface for other files, aes_trees.h and chacha.h have the PRFs.
//
// No branch and no memory address depends on a node, a control bit or a bit of alpha: corrections are masked. (The
// S-box table of aes.h is used for round keys only, which are public.)

#include "aes_trees.h"
#include "chacha.h"
#include "eight.h"

namespace {

constexpr int kHead = 48, kAes = 1, kChacha = 2;  // kHead: bytes of a key before the levels' corrections
constexpr int kNumber = 4, kParty = 5, kRows = 8, kPublic = 16, kRoot = 32;  // places of the fields
constexpr int kRandom = 48;  // random bytes for two keys
constexpr uint8_t kZeros[kLeafBytes] = {};

template <class Target>
Steps aes_steps(Target) {
    return {[](const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
                aes_children(Target{}, prf, corrections, nodes, n);
            },
            [](const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
                aes_convert(Target{}, prf, final, nodes, n, out);
            }};
}

template <class Target>
Steps chacha_steps(Target) {
    return {[](const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
                chacha_children(Target{}, prf, corrections, nodes, n);
            },
            [](const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
                chacha_convert(Target{}, prf, final, nodes, n, out);
            }};
}

Steps steps_of(int prf) {
    return prf == kChacha ? dispatch(OVERLOADS(chacha_steps)) : dispatch<AesTargets>(OVERLOADS(aes_steps));
}

Prf open_prf(int id, const uint8_t* public_key) {
    Prf prf;
    prf.id = id;
    memcpy(prf.public_key, public_key, kBlock);
    if (id == kAes) make_round_keys(prf.public_key, prf.round_keys);
    return prf;
}

int64_t leaves_of(int64_t rows) { return (rows + 8 * kLeafBytes - 1) / (8 * kLeafBytes); }

int depth_of(int64_t leaves) {
    int depth = 0;
    while ((int64_t(1) << depth) < leaves) depth++;
    return depth;
}

// Computes the nodes of this window: from the lowest node of the path that is above it, then level by level.
void open_window(Walker& w, const Steps& steps, int64_t window) {
    int level = 0;
    if (w.window >= 0)
        for (level = w.top; (w.window ^ window) >> (w.top - level); level--) {
        }
    alignas(64) uint8_t nodes[kWindow][kBlock] = {};
    for (; level < w.top; level++) {
        memcpy(nodes[0], w.path[level], kBlock);
        steps.children(w.prf, w.corrections + kCorrection * level, nodes[0], 1);
        memcpy(w.path[level + 1], nodes[window >> (w.top - level - 1) & 1], kBlock);
    }
    w.window = window;
    memcpy(w.nodes[0], w.path[w.top], kBlock);
    const int64_t rest = w.leaves - window * kWindow;
    const int wanted = int(rest < kWindow ? rest : kWindow);
    for (; level < w.depth; level++) {
        const int below = w.depth - level, n = (wanted + (1 << below) - 1) >> below;
        steps.children(w.prf, w.corrections + kCorrection * level, w.nodes[0], n);
    }
}

}  // namespace

void dpf_open(Walker& w, const uint8_t* key) {
    int64_t rows;
    memcpy(&rows, key + kRows, sizeof rows);
    w.prf = open_prf(key[kNumber], key + kPublic);
    w.leaves = leaves_of(rows);
    w.depth = depth_of(w.leaves);
    w.top = w.depth > kWindowLevels ? w.depth - kWindowLevels : 0;
    w.corrections = key + kHead;
    w.window = -1;
    memcpy(w.path[0], key + kRoot, kBlock);
    memset(w.nodes, 0, sizeof w.nodes);
}

void dpf_walk(Walker& w, int64_t first, int64_t leaves, uint8_t* out) {
    const Steps steps = steps_of(w.prf.id);
    while (leaves > 0) {
        const int64_t window = first / kWindow, start = first % kWindow;
        if (window != w.window) open_window(w, steps, window);
        const int n = int(leaves < kWindow - start ? leaves : kWindow - start);
        steps.convert(w.prf, w.corrections + kCorrection * w.depth, w.nodes[start], n, out);
        first += n;
        leaves -= n;
        out += kLeafBytes * n;
    }
}

// Whether all keys of a batch are valid, for this number of rows and, unless it is -1, for this party: as `check` in
// reference/lookups.py, which also says what is wrong.
API int hb_dpf_check(const uint8_t* keys, int64_t count, int64_t size, int64_t rows, int64_t party) {
    const int depth = depth_of(leaves_of(rows));
    if (size != kHead + kCorrection * depth + kLeafBytes) return 0;
    uint8_t wrong = 0;
    for (const uint8_t* key = keys; key < keys + count * size; key += size) {
        int64_t own;
        memcpy(&own, key + kRows, 8);
        const uint8_t number = key[kNumber], role = key[kParty];
        wrong |= memcmp(key, "DPF\1", kNumber) || own != rows || key[kParty + 1] || key[kParty + 2];
        wrong |= (number != kAes && number != kChacha) || role > 1 || (party >= 0 && role != party);
        wrong |= (key[kRoot] & 1) != role;
        for (int level = 0; level < depth; level++) {
            const uint8_t* const correction = key + kHead + kCorrection * level;
            wrong |= (correction[0] & 1) | (correction[kBlock] & 0xFC);
        }
        if (number == kChacha) wrong |= memcmp(key + kRoot - 4, kZeros, 4) != 0;
    }
    return !wrong;
}

// Selection bits of `batch` keys of `size` bytes: leaves first .. first + leaves - 1 of each, one key after another.
API void hb_dpf_expand(const uint8_t* keys, int64_t batch, int64_t size, int64_t first, int64_t leaves, uint8_t* out) {
    Walker walker;
    for (int64_t i = 0; i < batch; i++) {
        dpf_open(walker, keys + size * i);
        dpf_walk(walker, first, leaves, out + kLeafBytes * leaves * i);
    }
}

// Both parties' keys, and s = t_0[alpha] - t_1[alpha]. head: the first 16 bytes of party 0's keys, which name rows and
// PRF. random: 48 bytes a pair, two roots and the public key.
API void hb_dpf_generate(const int64_t* alphas, int64_t batch, const uint8_t* head, const uint8_t* random,
                         uint8_t* keys0, uint8_t* keys1, int64_t* signs) {
    int64_t rows;
    memcpy(&rows, head + kRows, sizeof rows);
    const int prf_id = head[kNumber], depth = depth_of(leaves_of(rows));
    const int64_t size = kHead + kCorrection * depth + kLeafBytes;
    const Steps steps = steps_of(prf_id);
    for (int64_t i = 0; i < batch; i++) {
        const uint64_t alpha = uint64_t(alphas[i]);
        uint8_t* const key = keys0 + size * i;
        memcpy(key, head, kPublic);
        memcpy(key + kPublic, random + kRandom * i + 2 * kBlock, kBlock);
        if (prf_id == kChacha) memset(key + kPublic + 12, 0, 4);
        const Prf prf = open_prf(prf_id, key + kPublic);
        alignas(64) uint64_t nodes[kWindow][2] = {};  // the parties' nodes on the path to alpha; their children
        memcpy(nodes, random + kRandom * i, 2 * kBlock);
        nodes[0][0] &= ~uint64_t(1);
        nodes[1][0] |= 1;
        uint8_t roots[2 * kBlock];
        memcpy(roots, nodes, sizeof roots);
        for (int level = 0; level < depth; level++) {
            const uint64_t bit = alpha >> (10 + depth - level - 1) & 1, right = -bit;
            const uint64_t control[2] = {-(nodes[0][0] & 1), -(nodes[1][0] & 1)};
            steps.children(prf, kZeros, (uint8_t*)nodes, 2);
            const uint64_t left_bit = (nodes[0][0] ^ nodes[2][0] ^ bit ^ 1) & 1;
            const uint64_t right_bit = (nodes[1][0] ^ nodes[3][0] ^ bit) & 1;
            uint64_t correction[2];  // makes the parties' nodes equal off the path
            for (int j = 0; j < 2; j++)
                correction[j] = PICK(right, nodes[0][j] ^ nodes[2][j], nodes[1][j] ^ nodes[3][j]);
            correction[0] &= ~uint64_t(1);
            uint8_t* const to = key + kHead + kCorrection * level;
            memcpy(to, correction, kBlock);
            to[kBlock] = uint8_t(left_bit | right_bit << 1);
            correction[0] |= PICK(right, right_bit, left_bit);
            for (int party = 0; party < 2; party++)
                for (int j = 0; j < 2; j++) {
                    const uint64_t kept = PICK(right, nodes[2 * party + 1][j], nodes[2 * party][j]);
                    nodes[party][j] = kept ^ (correction[j] & control[party]);
                }
        }
        uint64_t bits[2][16], final[16], at_alpha = 0;
        const uint64_t place = alpha & 1023, control = -(nodes[0][0] & 1);
        steps.convert(prf, kZeros, (const uint8_t*)nodes, 2, (uint8_t*)bits);
        for (uint64_t j = 0; j < 16; j++) {
            const uint64_t here = (((place >> 6) ^ j) - 1) >> 63, unit = here << (place & 63);
            final[j] = bits[0][j] ^ bits[1][j] ^ unit;
            at_alpha |= (bits[0][j] ^ (final[j] & control)) & unit;
        }
        signs[i] = 2 * int64_t(at_alpha != 0) - 1;
        memcpy(key + kRoot, roots, kBlock);
        memcpy(key + kHead + kCorrection * depth, final, kLeafBytes);
        uint8_t* const other = keys1 + size * i;
        memcpy(other, key, size_t(size));
        other[kParty] = 1;
        memcpy(other + kRoot, roots + kBlock, kBlock);
    }
}

// Masked openings for CPUs: words of any width in one stream of bits, step tables, the lift. Fast versions of
// reference/shares.py; shares/opening.py has the equations. Interface and conventions are those of kernels.cpp.

#include "threads.h"
#include "words.h"

namespace {

constexpr double kTerm = 0.5;  // nanoseconds: of one term of a sum

// ---- mask: rounded to a coarser scale, and masked

struct Rounded {
    const uint64_t *share, *mask;
    int shift;
    uint64_t half;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        T added = {};
        memcpy(&word, share + i, step);
        memcpy(&added, mask + i, step);
        word += half;
        if constexpr (sizeof(T) == 8) word = T(int64_t(word) >> shift);
        else word = T(SignedEight(word) >> shift);
        word += added;
    }
};

template <class Target>
BODY void mask_words(Target, const uint64_t* share, Words mask, int64_t n, int shift, int width, uint8_t* out) {
    uint64_t room[kRun];
    for (int64_t start = 0; start < n; start += kRun) {
        const int64_t here = n - start < kRun ? n - start : kRun;
        const Rounded source{share + start, run_of(Target{}, mask, start, here, room), shift, uint64_t(1) << shift >> 1};
        pack(Target{}, here, width, out + start / 8 * width, source);
    }
}

// ---- lookup: rows [L < v], [L <= v], and both for v with its top bit flipped

struct Lookup {
    const uint64_t* opened;
    const uint8_t* table;
    int64_t n;
    int low, bits, rows;  // row r is wanted if bit r of `rows` is set
};

BODY void lookup_from(int64_t start, const Lookup& job, uint8_t* out) {
    const int64_t stride = (job.n + 7) / 8;
    const uint64_t low = low_bits(job.bits), flip = (low + 1) / 2;
    for (int64_t i = start; i < job.n; i += 8) {
        const int64_t here = job.n - i < 8 ? job.n - i : 8;
        unsigned row[4] = {};
        for (int j = 0; j < here; j++) {
            const uint64_t v = (job.opened[i + j] >> job.low) & low, base = uint64_t(i + j) << job.bits;
            for (unsigned r = 0; r < 4; r++) {
                if (!(job.rows >> r & 1)) continue;
                const uint64_t place = r < 2 ? v : v ^ flip, less = r % 2 == 0;
                const uint64_t counts = !less || place, at = base + place - (less & counts);
                row[r] |= unsigned((job.table[at / 8] >> (at % 8)) & counts) << j;
            }
        }
        uint8_t* to = out + i / 8;
        for (unsigned r = 0; r < 4; r++)
            if (job.rows >> r & 1) *to = uint8_t(row[r]), to += stride;
    }
}

BODY void lookup(Portable, Lookup job, uint8_t* out) { lookup_from(0, job, out); }

#if X86
constexpr int kAhead = 1024;  // bytes; 256 to 2048 are alike, and without it tables of 8 bits take four times as long

AVX512 void lookup(Avx512, Lookup job, uint8_t* out) {
    // Sixteen tables fill whole 32-bit words, whatever their size, and so does every run of sixteen of them.
    const int64_t stride = (job.n + 7) / 8;
    const __m512i low = _mm512_set1_epi32(int(low_bits(job.bits))), one = _mm512_set1_epi32(1);
    const __m512i flip = _mm512_set1_epi32(1 << (job.bits - 1)), word = _mm512_set1_epi32(31);
    alignas(64) int32_t bases[16];
    for (int j = 0; j < 16; j++) bases[j] = j << job.bits;
    const __m512i base = _mm512_load_si512(bases);
    const __m128i skip = _mm_cvtsi32_si128(job.low);
    const bool small = job.bits <= 5;  // sixteen tables fit one register: its words are permuted, not gathered
    const __mmask16 filled = __mmask16(small ? low_bits(1 << (job.bits - 1)) : 0);
    int64_t i = 0;
    for (; i + 16 <= job.n; i += 16) {
        const __m512i a = _mm512_srl_epi64(_mm512_loadu_si512(job.opened + i), skip);
        const __m512i b = _mm512_srl_epi64(_mm512_loadu_si512(job.opened + i + 8), skip);
        const __m512i v = _mm512_and_si512(
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b), 1), low);
        const uint8_t* const tables = job.table + (i << job.bits) / 8;
        const __m512i block = _mm512_maskz_loadu_epi32(filled, tables);
        // The tables come from memory, and the prefetcher does not recognize gathers as reads in order.
        for (int line = 0; line < 2 << job.bits; line += 64) _mm_prefetch(tables + kAhead + line, _MM_HINT_T0);
        uint8_t* to = out + i / 8;
        for (int r = 0; r < 4; r++) {
            if (!(job.rows >> r & 1)) continue;
            const __m512i place = r < 2 ? v : _mm512_xor_si512(v, flip);
            const __mmask16 counts = r % 2 ? __mmask16(0xFFFF) : _mm512_test_epi32_mask(place, place);
            const __m512i at = _mm512_add_epi32(base, r % 2 ? place : _mm512_mask_sub_epi32(place, counts, place, one));
            const __m512i index = _mm512_srli_epi32(at, 5);
            const __m512i words =
                small ? _mm512_permutexvar_epi32(index, block) : _mm512_i32gather_epi32(index, tables, 4);
            const __m512i bit = _mm512_sllv_epi32(one, _mm512_and_si512(at, word));
            const uint16_t answers = _mm512_mask_test_epi32_mask(counts, words, bit);
            memcpy(to, &answers, sizeof answers);
            to += stride;
        }
    }
    lookup_from(i, job, out);
}
#endif

// ---- lift

struct Lift {
    const uint64_t* opened;
    const uint8_t *choice, *lifted;
    Words mask, carry, bit, wrap, product;
    bool whole;  // there is no carry, and `mask` is the share of z, which is not given again
    int k;
    uint64_t first;  // 1 for the party that adds public constants, else 0
    uint64_t *y, *z;
};

template <class Target>
BODY void lift(Target, int64_t n, Lift job) {
    uint64_t room[5][kRun];
    for (int64_t start = 0; start < n; start += kRun) {
        const int64_t here = n - start < kRun ? n - start : kRun;
        const uint64_t* const masks = run_of(Target{}, job.mask, start, here, room[0]);
        const uint64_t* const carries = job.whole ? masks : run_of(Target{}, job.carry, start, here, room[1]);
        const uint64_t* const bits = run_of(Target{}, job.bit, start, here, room[2]);
        const uint64_t* const wraps = run_of(Target{}, job.wrap, start, here, room[3]);
        const uint64_t* const products = run_of(Target{}, job.product, start, here, room[4]);
        by_eights(here, [&](int64_t i, size_t bytes) INLINE {
            Eight e, mask, carry, r_b, r_s, product, c_b, c_s;
            load(e, job.opened + start + i, bytes);
            load(mask, masks + i, bytes);
            load(carry, carries + i, bytes);
            load(r_b, bits + i, bytes);
            load(r_s, wraps + i, bytes);
            load(product, products + i, bytes);
            spread(c_b, job.choice[(start + i) / 8]);
            spread(c_s, job.lifted[(start + i) / 8]);
            const int k = job.k;
            const Eight b = PICK(c_b, job.first - r_b, r_b), s = PICK(c_s, job.first - r_s, r_s);
            const Eight below = ((e >> (k - 1)) & kOne) - kOne;  // all ones if the top bit is clear, else 0
            // << k, which C++ leaves undefined for k = 64.
            const Eight over = ((below & job.first) - s) << (k - 1) << 1;
            const Eight lifted = (e & (0 - job.first)) + over;
            const Eight own = job.whole ? lifted - mask : (mask & low_bits(k)) - (carry << (k - 1) << 1);
            const Eight all = lifted - own;
            const Eight part = e * b - PICK(c_b, own - product, product) + (over & below);
            memcpy(job.y + start + i, &part, bytes);
            if (!job.whole) memcpy(job.z + start + i, &all, bytes);
        });
    }
}

// ---- selected_sums: terms (i, j, l) of stacked matrix products, of which bits select some, added up over j

struct Selected {
    Words words;
    const uint64_t *left, *right;  // 0 or 1 for each (i, j), and for each (j, l); null: all terms count
    int64_t rows, inner, columns;
};

// Rows first .. last - 1 of all matrices of the stack.
template <class Target>
BODY void selected_sums(Target, const Selected& job, int64_t first, int64_t last, uint64_t* out) {
    uint64_t room[kRun];
    for (int64_t row = first; row < last; row++) {
        uint64_t* const sums = out + row * job.columns;
        memset(sums, 0, size_t(job.columns) * 8);
        for (int64_t j = 0; j < job.inner; j++) {
            if (job.left && !job.left[row * job.inner + j]) continue;
            const int64_t start = (row * job.inner + j) * job.columns;
            const int64_t behind = (row / job.rows * job.inner + j) * job.columns;  // of `right`
            for (int64_t l = 0; l < job.columns;) {
                const int64_t skip = (start + l) % 8, left = job.columns - l;  // a run begins at a whole byte
                const int64_t here = left < kRun - skip ? left : kRun - skip;
                const uint64_t* words = run_of(Target{}, job.words, start + l - skip, skip + here, room) + skip;
                by_eights(here, [&](int64_t i, size_t bytes) INLINE {
                    Eight total, word, counts;
                    load(total, sums + l + i, bytes);
                    load(word, words + i, bytes);
                    if (job.right) {
                        load(counts, job.right + behind + l + i, bytes);
                        word &= 0 - counts;
                    }
                    total += word;
                    memcpy(sums + l + i, &total, bytes);
                });
                l += here;
            }
        }
    }
}

}  // namespace

API void hb_pack_words(const uint64_t* x, int64_t n, int width, uint8_t* out) {
    dispatch(OVERLOADS(pack), n, width, out, Plain{x});
}

API void hb_mask_words(const uint64_t* share, const uint8_t* mask, int mask_width, int64_t n, int shift, int width,
                       uint8_t* out) {
    dispatch(OVERLOADS(mask_words), share, Words{mask, mask_width}, n, shift, width, out);
}

API void hb_open_words(const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    dispatch(OVERLOADS(open), frames, count, n, width, out);
}

API void hb_step_table(const uint64_t* x, int64_t n, int bits, uint8_t* out) {
    dispatch(OVERLOADS(step_table), x, n, bits, out);
}

API void hb_lookup(const uint64_t* opened, int64_t n, const uint8_t* table, int low, int bits, int rows,
                   uint8_t* out) {
    dispatch(OVERLOADS(lookup), Lookup{opened, table, n, low, bits, rows}, out);
}

// words, widths: of the mask, the carry, r_b, r_s and the product. whole: the mask is the share of z, the carry unread.
API void hb_lift(int64_t n, const uint64_t* opened, const uint8_t* choice, const uint8_t* const* words,
                 const int* widths, int whole, int k, int first, uint64_t* y, uint64_t* z) {
    const auto of = [=](int place) { return Words{words[place], widths[place]}; };
    const Lift job{opened, choice, choice + (n + 7) / 8, of(0), of(1), of(2), of(3), of(4), whole != 0, k,
                   uint64_t(first != 0), y, z};
    dispatch(OVERLOADS(lift), n, job);
}

// words: of `width` bits. left, right: null if all terms count. out: batch * rows * columns sums.
API void hb_selected_sums(const uint8_t* words, int width, const uint64_t* left, const uint64_t* right, int64_t batch,
                          int64_t rows, int64_t inner, int64_t columns, int threads, uint64_t* out) {
    const Selected job{{words, width}, left, right, rows, inner, columns};
    const double work = kTerm * double(batch * rows) * double(inner * columns);
    share(batch * rows, threads, work, [&](int64_t first, int64_t last) {
        dispatch(OVERLOADS(selected_sums), job, first, last, out);
    });
}

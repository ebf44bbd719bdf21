// The masked opening for CPUs: words of any width in one stream of bits, step tables, the lift. The fast twins of
// reference/shares/opening.py; shares/opening.py has the equations. Interface and conventions are those of kernels.cpp.
//
// Eight words of `width` bits fill `width` bytes, so with AVX-512 one register holds eight words on either side of a
// packing, and every 64-bit lane of it is two (unpacked) or three (packed) neighbouring lanes of the other, shifted:
// a vector shift by 64 or more gives 0, which makes one rule of all cases. Elsewhere a 64-bit accumulator does it.

#include "eight.h"

namespace {

BODY uint64_t low_bits(int width) { return width < 64 ? (uint64_t(1) << width) - 1 : ~uint64_t(0); }

typedef int64_t Signed8 __attribute__((vector_size(64)));
typedef int32_t Narrow8 __attribute__((vector_size(32)));

struct Words {  // of 64 bits, or of 32 with sign
    const void* words;
    bool narrow;
};

BODY void read_words(Eight& to, Words from, int64_t i, size_t bytes) {
    if (!from.narrow) return load(to, static_cast<const uint64_t*>(from.words) + i, bytes);
    Narrow8 half = {};
    memcpy(&half, static_cast<const int32_t*>(from.words) + i, bytes / 2);
    to = Eight(__builtin_convertvector(half, Signed8));
}

BODY void read_words(uint64_t& to, Words from, int64_t i, size_t) {
    to = from.narrow ? uint64_t(int64_t(static_cast<const int32_t*>(from.words)[i]))
                     : static_cast<const uint64_t*>(from.words)[i];
}

// ---- sources of words to pack: read() gives one, or eight of which `step` bytes are there

struct Plain {
    const uint64_t* x;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        memcpy(&word, x + i, step);
    }
};

struct Rounded {  // to a coarser scale, and masked
    const uint64_t* share;
    Words mask;
    int shift;
    uint64_t half;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        T added = {};
        memcpy(&word, share + i, step);
        read_words(added, mask, i, step);
        word += half;
        if constexpr (sizeof(T) == 8) word = T(int64_t(word) >> shift);
        else word = T(Signed8(word) >> shift);
        word += added;
    }
};

struct Steps {  // step tables of up to 64 bits
    const uint64_t* x;
    uint64_t low;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        memcpy(&word, x + i, step);
        word = ~T{} << (word & low);
    }
};

// ---- pack: n words of `width` bits

template <class Source>
BODY void pack(Portable, int64_t n, int width, uint8_t* out, Source source) {
    const uint64_t low = low_bits(width);
    uint64_t filling = 0;
    int filled = 0;  // bits, below 64
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = 0;
        source.read(word, i, sizeof word);
        word &= low;
        filling |= word << filled;
        filled += width;
        if (filled >= 64) {
            memcpy(out, &filling, sizeof filling);
            out += sizeof filling;
            filled -= 64;
            filling = filled ? word >> (width - filled) : 0;
        }
    }
    if (filled) memcpy(out, &filling, size_t(filled + 7) / 8);
}

#if X86
template <class Source>
AVX512 void pack(Avx512, int64_t n, int width, uint8_t* out, Source source) {
    // Neighbours are joined within the register until a joined word has more than 32 bits, or all eight are one word;
    // a lane of the output then touches three joined words at most.
    if (width == 0) return;
    int levels = 0, joined = width;
    for (; levels < 3 && joined <= 32; levels++) joined *= 2;
    alignas(64) uint64_t lane[3][8], shift[3][8];
    for (int j = 0; j < 8; j++)
        for (int t = 0, start = 64 * j / joined; t < 3; t++) {  // lane j takes joined words start, start + 1, start + 2
            lane[t][j] = uint64_t(start + t) << levels;
            shift[t][j] = uint64_t(t ? (start + t) * joined - 64 * j : 64 * j - start * joined);
        }
    const __m512i first = _mm512_load_si512(lane[0]), second = _mm512_load_si512(lane[1]),
                  third = _mm512_load_si512(lane[2]);
    const __m512i right = _mm512_load_si512(shift[0]), left = _mm512_load_si512(shift[1]),
                  far_left = _mm512_load_si512(shift[2]);
    const __m128i one = _mm_cvtsi32_si128(width), two = _mm_cvtsi32_si128(2 * width),
                  four = _mm_cvtsi32_si128(4 * width);
    const __m512i low = _mm512_set1_epi64(int64_t(low_bits(width)));
    const int64_t bytes = (n * width + 7) / 8;
    for (int64_t i = 0, at = 0; i < n; i += 8, at += width) {
        Eight words = {};
        if (n - i >= 8) {
            source.read(words, i, sizeof words);
        } else {
            source.read(words, i, size_t(n - i) * 8);
            words &= Eight(kLane < uint64_t(n - i));  // spare bits are 0
        }
        __m512i x = _mm512_and_si512((__m512i)words, low);
        if (levels > 0) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_unpackhi_epi64(x, x), one));
        if (levels > 1) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_permutex_epi64(x, 0xEE), two));
        if (levels > 2) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_shuffle_i64x2(x, x, 0xEE), four));
        __m512i packed = _mm512_srlv_epi64(_mm512_permutexvar_epi64(first, x), right);
        packed = _mm512_or_si512(packed, _mm512_sllv_epi64(_mm512_permutexvar_epi64(second, x), left));
        packed = _mm512_or_si512(packed, _mm512_sllv_epi64(_mm512_permutexvar_epi64(third, x), far_left));
        if (at + 64 <= bytes)
            _mm512_storeu_si512(out + at, packed);  // what lies behind `width` bytes is written again by later steps
        else
            _mm512_mask_storeu_epi8(out + at, low_bits(int(bytes - at < width ? bytes - at : width)), packed);
    }
}
#endif

// ---- open: the sum of packed words

BODY uint64_t word_at(const uint8_t* data, uint64_t bit) {  // the 64 bits that begin there
    uint64_t word;
    memcpy(&word, data + bit / 8, sizeof word);
    return word >> (bit % 8) | uint64_t(data[bit / 8 + 8]) << 1 << (63 - bit % 8);
}

BODY void open(Portable, const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    const uint64_t low = low_bits(width), bytes = (uint64_t(n) * uint64_t(width) + 7) / 8;
    uint64_t bit = 0;
    int64_t i = 0;
    for (; i < n && bit / 8 + 9 <= bytes; i++, bit += uint64_t(width)) {
        uint64_t total = word_at(frames[0], bit);
        for (int f = 1; f < count; f++) total += word_at(frames[f], bit);
        out[i] = total & low;
    }
    for (; i < n; i++, bit += uint64_t(width)) {
        uint64_t total = 0;
        for (int f = 0; f < count; f++) {
            uint8_t rest[9] = {};
            if (width) memcpy(rest, frames[f] + bit / 8, bytes - bit / 8 < 9 ? bytes - bit / 8 : 9);
            total += word_at(rest, bit % 8);
        }
        out[i] = total & low;
    }
}

#if X86
AVX512 void open(Avx512, const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    const __m512i bit = _mm512_mullo_epi64((__m512i)kLane, _mm512_set1_epi64(width));  // below 7 * 64
    const __m512i first = _mm512_srli_epi64(bit, 6), second = _mm512_add_epi64(first, (__m512i)kOne);
    const __m512i right = _mm512_and_si512(bit, _mm512_set1_epi64(63));
    const __m512i left = _mm512_sub_epi64(_mm512_set1_epi64(64), right);
    const __m512i low = _mm512_set1_epi64(int64_t(low_bits(width)));
    for (int64_t i = 0, at = 0; i < n; i += 8, at += width) {
        const int64_t here = n - i < 8 ? n - i : 8;
        const __mmask64 bytes = low_bits(int(here * width + 7) / 8);
        __m512i total = _mm512_setzero_si512();
        for (int f = 0; f < count; f++) {
            const __m512i x = _mm512_maskz_loadu_epi8(bytes, frames[f] + at);
            total = _mm512_add_epi64(total, _mm512_srlv_epi64(_mm512_permutexvar_epi64(first, x), right));
            total = _mm512_add_epi64(total, _mm512_sllv_epi64(_mm512_permutexvar_epi64(second, x), left));
        }
        _mm512_mask_storeu_epi64(out + i, __mmask8(low_bits(int(here))), _mm512_and_si512(total, low));
    }
}
#endif

// ---- step tables of 128 and 256 bits

template <int kBytes>
BODY void wide_steps(Portable, const uint64_t* x, int64_t n, uint8_t* out) {
    // A window of these constants, which starts so that the step comes at the right byte.
    static const struct Bytes {
        uint8_t at[2 * kBytes];
        constexpr Bytes() : at() {
            for (int j = kBytes; j < 2 * kBytes; j++) at[j] = 0xFF;
        }
    } bytes;
#pragma GCC unroll 4  // or else the speed depends on where so short a loop comes to lie in memory
    for (int64_t i = 0; i < n; i++, out += kBytes) {
        const uint64_t step = x[i] % (8 * kBytes);
        memcpy(out, bytes.at + kBytes - step / 8, kBytes);
        out[step / 8] = uint8_t(0xFF << (step % 8));
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
        // The tables come from memory, and gathers do not tell the prefetcher that they read in order.
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
    int k;
    uint64_t first;  // 1 for the party that adds public constants, else 0
    uint64_t *y, *z;
};

BODY void lift(Portable, int64_t n, Lift job) {
    by_eights(n, [&](int64_t i, size_t bytes) INLINE {
        Eight e, mask, carry, r_b, r_s, product, c_b, c_s;
        load(e, job.opened + i, bytes);
        read_words(mask, job.mask, i, bytes);
        read_words(carry, job.carry, i, bytes);
        read_words(r_b, job.bit, i, bytes);
        read_words(r_s, job.wrap, i, bytes);
        read_words(product, job.product, i, bytes);
        spread(c_b, job.choice[i / 8]);
        spread(c_s, job.lifted[i / 8]);
        const int k = job.k;
        const Eight b = PICK(c_b, job.first - r_b, r_b), s = PICK(c_s, job.first - r_s, r_s);
        const Eight below = ((e >> (k - 1)) & kOne) - kOne;  // all ones if the top bit is clear, else 0
        // << k, which C++ leaves undefined for k = 64.
        const Eight own = (mask & low_bits(k)) - (carry << (k - 1) << 1);
        const Eight over = ((below & job.first) - s) << (k - 1) << 1;
        const Eight all = (e & (0 - job.first)) - own + over;
        const Eight part = e * b - PICK(c_b, own - product, product) + (over & below);
        memcpy(job.y + i, &part, bytes);
        memcpy(job.z + i, &all, bytes);
    });
}

}  // namespace

API void hb_pack_words(const uint64_t* x, int64_t n, int width, uint8_t* out) {
    dispatch(OVERLOADS(pack), n, width, out, Plain{x});
}

API void hb_mask_words(const uint64_t* share, const void* mask, int narrow, int64_t n, int shift, int width,
                       uint8_t* out) {
    const Words added{mask, narrow != 0};
    dispatch(OVERLOADS(pack), n, width, out, Rounded{share, added, shift, uint64_t(1) << shift >> 1});
}

API void hb_open_words(const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    dispatch(OVERLOADS(open), frames, count, n, width, out);
}

API void hb_step_table(const uint64_t* x, int64_t n, int bits, uint8_t* out) {
    if (bits == 8) return dispatch(OVERLOADS(wide_steps<32>), x, n, out);
    if (bits == 7) return dispatch(OVERLOADS(wide_steps<16>), x, n, out);
    dispatch(OVERLOADS(pack), n, 1 << bits, out, Steps{x, low_bits(bits)});
}

API void hb_lookup(const uint64_t* opened, int64_t n, const uint8_t* table, int low, int bits, int rows,
                   uint8_t* out) {
    dispatch(OVERLOADS(lookup), Lookup{opened, table, n, low, bits, rows}, out);
}

// Bit j of `narrow` says that the j-th of the last five has words of 32 bits.
API void hb_lift(int64_t n, const uint64_t* opened, const uint8_t* choice, const void* mask, const void* carry,
                 const void* bit, const void* wrap, const void* product, int narrow, int k, int first, uint64_t* y,
                 uint64_t* z) {
    const auto is = [=](int place) { return (narrow >> place & 1) != 0; };
    const Lift job{opened, choice, choice + (n + 7) / 8, {mask, is(0)}, {carry, is(1)}, {bit, is(2)}, {wrap, is(3)},
                   {product, is(4)}, k, uint64_t(first != 0), y, z};
    dispatch(OVERLOADS(lift), n, job);
}

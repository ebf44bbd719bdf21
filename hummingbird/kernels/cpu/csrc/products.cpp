// Matrix products and convolutions mod 2^64, for CPUs: fast versions of reference/shares/products.py.
//
// One algorithm for all. An output channel's values at all places (output positions) of all images are one row of a
// matrix product [outputs, terms] x [terms, places]. For 24 places at a time the inputs are copied side by side into a
// panel [terms, 24] (a piece of the unfolding that fits the cache), and a tile of 8 outputs x 24 places is summed in
// registers: 24 sums, 3 vectors of inputs and a weight fit the 32 registers of AVX-512 (K. Goto, R. van de Geijn,
// Anatomy of High-Performance Matrix Multiplication, ACM TOMS 2008). A matrix product is a 1x1 convolution of one
// image. With one input channel and one or two outputs per group a panel would not be reused: these sum along the rows.
//
// Products are of uint64_t, so they wrap by the language's own rule: exact for all operands, without a bound. If at
// most 52 bits of the result are read, one instruction of AVX-512 IFMA multiplies and adds mod 2^52; and if the weights
// are signed 32-bit integers, AVX2 needs two products of halves in place of three.

#include "eight.h"
#include "threads.h"

#if defined(__GNUC__) && !defined(__clang__)
// Without 64-bit vector multiplication, one word at a time is faster than what the compiler would make of vectors.
#define SCALAR __attribute__((optimize("no-tree-vectorize")))
#else
#define SCALAR
#endif

namespace {

typedef uint64_t Loose __attribute__((vector_size(64), aligned(8)));  // Eight at any address
constexpr int kRows = 8, kVectors = 3, kPlaces = 8 * kVectors;

// ---- tiles, `small` where the weights a are within 32 bits:
// sums[r * kPlaces + j] = sum over p < terms of a[r * stride + p] * panel[p * kPlaces + j], j < 8 * vectors

SCALAR void tile(Portable, const uint64_t* a, int64_t stride, int rows, const uint64_t* panel, int vectors,
                 int64_t terms, bool, uint64_t* sums) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 8 * vectors; j += 8) {
            uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
            for (int64_t p = 0; p < terms; p++) {
                const uint64_t w = a[r * stride + p], *b = panel + p * kPlaces + j;
                s0 += w * b[0], s1 += w * b[1], s2 += w * b[2], s3 += w * b[3];
                s4 += w * b[4], s5 += w * b[5], s6 += w * b[6], s7 += w * b[7];
            }
            const uint64_t all[8] = {s0, s1, s2, s3, s4, s5, s6, s7};
            memcpy(sums + r * kPlaces + j, all, sizeof all);
        }
}

#if X86
// 32-bit halves: a b = a0 b0 + 2^32 (a1 b0 + a0 b1) mod 2^64. The middle products are summed apart, shifted once.
template <int R>
AVX2 BODY void halves(const uint64_t* a, int64_t stride, const uint64_t* panel, int64_t terms, uint64_t* sums) {
    __m256i low[R][2], middle[R][2];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) low[r][v] = middle[r][v] = _mm256_setzero_si256();
    for (int64_t p = 0; p < terms; p++) {
        __m256i b[2], high[2];
        for (int v = 0; v < 2; v++) {
            b[v] = _mm256_loadu_si256((const __m256i*)(panel + p * kPlaces + 4 * v));
            high[v] = _mm256_srli_epi64(b[v], 32);
        }
        for (int r = 0; r < R; r++) {
            const __m256i w = _mm256_set1_epi64x(int64_t(a[r * stride + p])), w_high = _mm256_srli_epi64(w, 32);
            for (int v = 0; v < 2; v++) {
                low[r][v] = _mm256_add_epi64(low[r][v], _mm256_mul_epu32(w, b[v]));
                middle[r][v] = _mm256_add_epi64(middle[r][v], _mm256_mul_epu32(w_high, b[v]));
                middle[r][v] = _mm256_add_epi64(middle[r][v], _mm256_mul_epu32(w, high[v]));
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) {
            const __m256i all = _mm256_add_epi64(low[r][v], _mm256_slli_epi64(middle[r][v], 32));
            _mm256_storeu_si256((__m256i*)(sums + r * kPlaces + 4 * v), all);
        }
}

// A small signed a times b = c0 + 2^32 c1, -2^31 <= c0 < 2^31: a b = a c0 + 2^32 a c1 mod 2^64, and only the low half
// of c1 is used. One vector of four places and more rows, which all use the same c0 and c1.
template <int R>
AVX2 BODY void small_halves(const uint64_t* a, int64_t stride, const uint64_t* panel, int64_t terms, uint64_t* sums) {
    __m256i low[R], high[R];
    for (int r = 0; r < R; r++) low[r] = high[r] = _mm256_setzero_si256();
    const __m256i round = _mm256_set1_epi64x(int64_t(1) << 31);
    for (int64_t p = 0; p < terms; p++) {
        const __m256i c0 = _mm256_loadu_si256((const __m256i*)(panel + p * kPlaces));  // the low half, as a signed one
        const __m256i c1 = _mm256_srli_epi64(_mm256_add_epi64(c0, round), 32);
        for (int r = 0; r < R; r++) {
            const __m256i w = _mm256_set1_epi64x(int64_t(a[r * stride + p]));
            low[r] = _mm256_add_epi64(low[r], _mm256_mul_epi32(w, c0));
            high[r] = _mm256_add_epi64(high[r], _mm256_mul_epi32(w, c1));
        }
    }
    for (int r = 0; r < R; r++) {
        const __m256i all = _mm256_add_epi64(low[r], _mm256_slli_epi64(high[r], 32));
        _mm256_storeu_si256((__m256i*)(sums + r * kPlaces), all);
    }
}

AVX2 void small_tile(const uint64_t* a, int64_t stride, int rows, const uint64_t* panel, int vectors, int64_t terms,
                     uint64_t* sums) {
    for (int j = 0; j < 8 * vectors; j += 4) {
        int r = 0;
        for (; r + 4 <= rows; r += 4) small_halves<4>(a + r * stride, stride, panel + j, terms, sums + r * kPlaces + j);
        for (; r < rows; r++) small_halves<1>(a + r * stride, stride, panel + j, terms, sums + r * kPlaces + j);
    }
}

AVX2 void tile(Avx2, const uint64_t* a, int64_t stride, int rows, const uint64_t* panel, int vectors, int64_t terms,
               bool small, uint64_t* sums) {
    if (small) return small_tile(a, stride, rows, panel, vectors, terms, sums);
    for (int v = 0; v < vectors; v++) {
        int r = 0;
        for (; r + 2 <= rows; r += 2)
            halves<2>(a + r * stride, stride, panel + 8 * v, terms, sums + r * kPlaces + 8 * v);
        if (r < rows) halves<1>(a + r * stride, stride, panel + 8 * v, terms, sums + r * kPlaces + 8 * v);
    }
}

template <int R, int V>
AVX512 BODY void whole(const uint64_t* a, int64_t stride, const uint64_t* panel, int64_t terms, uint64_t* sums) {
    Eight sum[R][V] = {};
    for (int64_t p = 0; p < terms; p++) {
        Eight b[V];
        for (int v = 0; v < V; v++) b[v] = *(const Loose*)(panel + p * kPlaces + 8 * v);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] += a[r * stride + p] * b[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) *(Loose*)(sums + r * kPlaces + 8 * v) = sum[r][v];
}

template <int R>
AVX512 BODY void wide(const uint64_t* a, int64_t stride, const uint64_t* panel, int vectors, int64_t terms,
                      uint64_t* sums) {
    if (vectors == 1) whole<R, 1>(a, stride, panel, terms, sums);
    if (vectors == 2) whole<R, 2>(a, stride, panel, terms, sums);
    if (vectors == 3) whole<R, 3>(a, stride, panel, terms, sums);
}

AVX512 void tile(Avx512, const uint64_t* a, int64_t stride, int rows, const uint64_t* panel, int vectors,
                 int64_t terms, bool, uint64_t* sums) {
    if (rows == kRows) return wide<kRows>(a, stride, panel, vectors, terms, sums);
    for (int r = 0; r < rows; r++) wide<1>(a + r * stride, stride, panel, vectors, terms, sums + r * kPlaces);
}

// Mod 2^52: the instruction multiplies the low 52 bits of its operands, and adds the low 52 bits of that to 64.
template <int R, int V>
AVX512_IFMA BODY void low52(const uint64_t* a, int64_t stride, const uint64_t* panel, int64_t terms, uint64_t* sums) {
    __m512i sum[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sum[r][v] = _mm512_setzero_si512();
    for (int64_t p = 0; p < terms; p++) {
        __m512i b[V];
        for (int v = 0; v < V; v++) b[v] = _mm512_loadu_si512(panel + p * kPlaces + 8 * v);
        for (int r = 0; r < R; r++) {
            const __m512i w = _mm512_set1_epi64(int64_t(a[r * stride + p]));
            for (int v = 0; v < V; v++) sum[r][v] = _mm512_madd52lo_epu64(sum[r][v], w, b[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) _mm512_storeu_si512(sums + r * kPlaces + 8 * v, sum[r][v]);
}

template <int R>
AVX512_IFMA BODY void wide52(const uint64_t* a, int64_t stride, const uint64_t* panel, int vectors, int64_t terms,
                             uint64_t* sums) {
    if (vectors == 1) low52<R, 1>(a, stride, panel, terms, sums);
    if (vectors == 2) low52<R, 2>(a, stride, panel, terms, sums);
    if (vectors == 3) low52<R, 3>(a, stride, panel, terms, sums);
}

AVX512_IFMA void tile(Avx512Ifma, const uint64_t* a, int64_t stride, int rows, const uint64_t* panel, int vectors,
                      int64_t terms, bool, uint64_t* sums) {
    if (rows == kRows) return wide52<kRows>(a, stride, panel, vectors, terms, sums);
    for (int r = 0; r < rows; r++) wide52<1>(a + r * stride, stride, panel, vectors, terms, sums + r * kPlaces);
}
#endif

// ---- the product

struct Shape {  // as cpu/shares.py fills it in; x is padded already
    int64_t batch, channels, height, width, outputs, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w,
        groups, out_h, out_w, bits, weight_bits, x_bits;  // the last three: of the result that are read, of the weights,
};                                                        // and of a number of x as it is stored, 64 or 32

// Eight inputs that lie side by side, for all terms.
BODY void fill_eight(Portable, const uint64_t* x, const int64_t* tap, int64_t terms, uint64_t* panel) {
    for (int64_t p = 0; p < terms; p++) memcpy(panel + p * kPlaces, x + tap[p], 64);
}

void fill_eight(Portable, const int32_t* x, const int64_t* tap, int64_t terms, uint64_t* panel) {
    for (int64_t p = 0; p < terms; p++)
        for (int j = 0; j < 8; j++) panel[p * kPlaces + j] = uint64_t(int64_t(x[tap[p] + j]));
}

#if X86
AVX512 void fill_eight(Avx512, const int32_t* x, const int64_t* tap, int64_t terms, uint64_t* panel) {
    for (int64_t p = 0; p < terms; p++) {
        const __m256i words = _mm256_loadu_si256((const __m256i*)(x + tap[p]));
        _mm512_storeu_si512(panel + p * kPlaces, _mm512_cvtepi32_epi64(words));
    }
}
#endif

// Inputs of up to 24 places, as offsets `at`; tap[p]: where term p lies from there. The spare places repeat the last.
template <class Target, class Number>
void fill(Target target, const Number* x, const int64_t* at, int vectors, const int64_t* tap, int64_t terms,
          uint64_t* panel) {
    for (int v = 0; v < vectors; v++, at += 8, panel += 8) {
        int run = 1;  // places that lie side by side in memory, from the first and from the fifth on
        while (run < 8 && (run == 4 || at[run] == at[run - 1] + 1)) run++;
        if (run == 8 && at[4] == at[3] + 1) {
            fill_eight(target, x + at[0], tap, terms, panel);
        } else if (run == 8 && sizeof(Number) == 8) {
            for (int64_t p = 0; p < terms; p++) {
                memcpy(panel + p * kPlaces, x + at[0] + tap[p], 32);
                memcpy(panel + p * kPlaces + 4, x + at[4] + tap[p], 32);
            }
        } else {
            for (int64_t p = 0; p < terms; p++)
                for (int j = 0; j < 8; j++) panel[p * kPlaces + j] = uint64_t(int64_t(x[at[j] + tap[p]]));
        }
    }
}

struct Part {  // of the work: panels of places and rows of outputs, first to last
    int64_t panel, panels, row, rows;
};

template <class Target, class Number>
void multiply(Target target, const Number* x, const uint64_t* weight, const Shape& s, const Part& part,
              uint64_t* out) {
    const int64_t inputs = s.channels / s.groups, outputs = s.outputs / s.groups, plane = s.height * s.width;
    const int64_t terms = inputs * s.kernel_h * s.kernel_w, length = s.out_h * s.out_w, places = s.batch * length;
    std::vector<int64_t> tap;
    for (int64_t c = 0; c < inputs; c++)
        for (int64_t i = 0; i < s.kernel_h; i++)
            for (int64_t j = 0; j < s.kernel_w; j++)
                tap.push_back(c * plane + i * s.dilation_h * s.width + j * s.dilation_w);
    // Terms at a time: the weights of all outputs should stay in a second-level cache of 1 MiB, the panel too.
    int64_t block = (1 << 17) / outputs;
    block = block < 256 ? 256 : block > 1024 ? 1024 : block;
    std::vector<uint64_t> panel(size_t(block * kPlaces));
    uint64_t sums[kRows * kPlaces];
    for (int64_t g = 0; g < s.groups; g++)
        for (int64_t term = 0; term < terms; term += block) {
            const int64_t now = terms - term < block ? terms - term : block;
            for (int64_t first = part.panel * kPlaces; first < part.panels * kPlaces && first < places;
                 first += kPlaces) {
                const int here = int(places - first < kPlaces ? places - first : kPlaces), vectors = (here + 7) / 8;
                int64_t from[kPlaces], to[kPlaces];
                for (int j = 0; j < kPlaces; j++) {
                    const int64_t place = first + (j < here ? j : here - 1), b = place / length, l = place % length;
                    from[j] = (b * s.channels + g * inputs) * plane + l / s.out_w * s.stride_h * s.width +
                              l % s.out_w * s.stride_w;
                    to[j] = (b * s.outputs + g * outputs) * length + l;
                }
                fill(target, x, from, vectors, tap.data() + term, now, panel.data());
                const bool run = to[here - 1] == to[0] + here - 1;  // all in one image
                for (int64_t m = part.row; m < part.rows; m += kRows) {
                    const int rows = int(part.rows - m < kRows ? part.rows - m : kRows);
                    const uint64_t* const a = weight + (g * outputs + m) * terms + term;
                    tile(target, a, terms, rows, panel.data(), vectors, now, s.weight_bits <= 32, sums);
                    for (int r = 0; r < rows; r++) {
                        uint64_t* target = out + (m + r) * length;
                        const uint64_t* sum = sums + r * kPlaces;
                        if (run && !term) memcpy(target + to[0], sum, size_t(here) * 8);
                        else if (run) for (int j = 0; j < here; j++) target[to[0] + j] += sum[j];
                        else if (!term) for (int j = 0; j < here; j++) target[to[j]] = sum[j];
                        else for (int j = 0; j < here; j++) target[to[j]] += sum[j];
                    }
                }
            }
        }
}

// ---- a few rows times a matrix of 32 bits: the matrix is read once, in order, and sums of a run of columns stay in the
// first-level cache

constexpr int64_t kFew = 4, kColumns = 1024;

// sums[j] += w x[j]
BODY void add_product(Portable, const int32_t* x, uint64_t w, int64_t n, uint64_t* sums) {
    for (int64_t j = 0; j < n; j++) sums[j] += w * uint64_t(int64_t(x[j]));
}

#if X86
AVX2 void add_product(Avx2, const int32_t* x, uint64_t w, int64_t n, uint64_t* sums) {
    // w = low + 2^32 high, low with sign; one instruction multiplies signed numbers of 32 bits
    const __m256i low = _mm256_set1_epi64x(int64_t(w)), high = _mm256_set1_epi64x(int64_t((w + (1u << 31)) >> 32));
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        const __m256i words = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i*)(x + j)));
        __m256i sum = _mm256_loadu_si256((const __m256i*)(sums + j));
        sum = _mm256_add_epi64(sum, _mm256_mul_epi32(words, low));
        sum = _mm256_add_epi64(sum, _mm256_slli_epi64(_mm256_mul_epi32(words, high), 32));
        _mm256_storeu_si256((__m256i*)(sums + j), sum);
    }
    add_product(Portable{}, x + j, w, n - j, sums + j);
}

AVX512 void add_product(Avx512, const int32_t* x, uint64_t w, int64_t n, uint64_t* sums) {
    const __m512i factor = _mm512_set1_epi64(int64_t(w));
    for (int64_t j = 0; j < n; j += 8) {
        const __mmask8 here = __mmask8(n - j < 8 ? (1u << (n - j)) - 1 : 255);
        const __m512i words = _mm512_cvtepi32_epi64(_mm256_maskz_loadu_epi32(here, x + j));
        const __m512i sum = _mm512_maskz_loadu_epi64(here, sums + j);
        _mm512_mask_storeu_epi64(sums + j, here, _mm512_add_epi64(sum, _mm512_mullo_epi64(words, factor)));
    }
}
#endif

// x (terms, columns); weight (rows, terms); out (rows, columns): columns part.panel to part.panels - 1, in panels.
template <class Target>
void few_rows(Target target, const int32_t* x, const uint64_t* weight, const Shape& s, const Part& part,
              uint64_t* out) {
    const int64_t columns = s.out_w, last = std::min(part.panels * kPlaces, columns);
    for (int64_t first = part.panel * kPlaces; first < last; first += kColumns) {
        const int64_t here = std::min(kColumns, last - first);
        for (int64_t r = 0; r < s.outputs; r++) memset(out + r * columns + first, 0, size_t(here) * 8);
        for (int64_t p = 0; p < s.channels; p++)
            for (int64_t r = 0; r < s.outputs; r++)
                add_product(target, x + p * columns + first, weight[r * s.channels + p], here,
                            out + r * columns + first);
    }
}

// ---- one input channel, one or two outputs per group: a row of outputs is a sum of scaled rows of inputs

SCALAR void row(Portable, const uint64_t* x, const uint64_t* weight, const Shape& s, uint64_t* out) {
    for (int64_t l = 0; l < s.out_w; l++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < s.kernel_h; i++)
            for (int64_t j = 0; j < s.kernel_w; j++)
                sum += weight[i * s.kernel_w + j] * x[i * s.dilation_h * s.width + j * s.dilation_w + l * s.stride_w];
        out[l] = sum;
    }
}

#if X86
AVX512 void row(Avx512, const uint64_t* x, const uint64_t* weight, const Shape& s, uint64_t* out) {
    if (s.stride_w > 2) return row(Portable{}, x, weight, s, out);
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    for (int64_t l = 0; l < s.out_w; l += 8) {
        const int64_t here = s.out_w - l < 8 ? s.out_w - l : 8, span = (here - 1) * s.stride_w + 1;
        const uint32_t wanted = (1u << span) - 1;  // nothing beyond the last input of the row is touched
        Eight sum = {};
        for (int64_t i = 0; i < s.kernel_h; i++)
            for (int64_t j = 0; j < s.kernel_w; j++) {
                const uint64_t* at = x + i * s.dilation_h * s.width + j * s.dilation_w + l * s.stride_w;
                __m512i value = _mm512_maskz_loadu_epi64(__mmask8(wanted), at);
                if (s.stride_w == 2)
                    value = _mm512_permutex2var_epi64(value, even,
                                                      _mm512_maskz_loadu_epi64(__mmask8(wanted >> 8), at + 8));
                sum += weight[i * s.kernel_w + j] * (Eight)value;
            }
        _mm512_mask_storeu_epi64(out + l, __mmask8((1u << here) - 1), (__m512i)sum);
    }
}
#endif

// rows here: of the batch * outputs planes of the result
template <class Target>
void depthwise(Target target, const uint64_t* x, const uint64_t* weight, const Shape& s, const Part& part,
               uint64_t* out) {
    for (int64_t at = part.row; at < part.rows; at++) {
        const int64_t output = at % s.outputs;
        const int64_t channel = at / s.outputs * s.channels + output / (s.outputs / s.channels);
        for (int64_t i = 0; i < s.out_h; i++)
            row(target, x + (channel * s.height + i * s.stride_h) * s.width,
                weight + output * s.kernel_h * s.kernel_w, s, out + (at * s.out_h + i) * s.out_w);
    }
}

}  // namespace

// out (batch, outputs, out_h, out_w) = x (batch, channels, height, width) convolved with weight (outputs,
// channels / groups, kernel_h, kernel_w); all contiguous, nothing empty. shape: 17 numbers in the order of `Shape`. x: of
// 64 bits; or of 32, with sign, for a matrix: height, kernel, strides and groups are 1.
API void hb_conv2d(const void* x, const uint64_t* weight, const int64_t* shape, int threads, uint64_t* out) {
    Shape s;
    memcpy(&s, shape, sizeof s);
    const int64_t outputs = s.outputs / s.groups, panels = (s.batch * s.out_h * s.out_w + kPlaces - 1) / kPlaces;
    const bool narrow = s.x_bits == 32, few = narrow && outputs <= kFew;
    const bool alone = !few && s.groups == s.channels && outputs <= 2;
    // Threads share the longer side, in whole panels or tiles.
    const int64_t rows = alone ? s.batch * s.outputs : outputs, step = alone ? 1 : kRows;
    const bool by_rows = alone || (!few && rows / step > panels);
    const int64_t pieces = by_rows ? (rows + step - 1) / step : panels;
    const double products = double(s.batch) * double(s.outputs) * double(s.out_h * s.out_w) *
                            double(s.channels / s.groups * s.kernel_h * s.kernel_w);
    share(pieces, threads, kProduct * products, [&](int64_t first, int64_t last) {
        const int64_t end = std::min(last * step, rows);
        const Part part = by_rows ? Part{0, panels, first * step, end} : Part{first, last, 0, rows};
        const auto wide_x = static_cast<const uint64_t*>(x);
        const auto narrow_x = static_cast<const int32_t*>(x);
        if (few) dispatch(OVERLOADS(few_rows), narrow_x, weight, s, part, out);
        else if (alone) dispatch(OVERLOADS(depthwise), wide_x, weight, s, part, out);
        else if (s.bits <= 52 && narrow) dispatch<IfmaTargets>(OVERLOADS(multiply), narrow_x, weight, s, part, out);
        else if (s.bits <= 52) dispatch<IfmaTargets>(OVERLOADS(multiply), wide_x, weight, s, part, out);
        else if (narrow) dispatch(OVERLOADS(multiply), narrow_x, weight, s, part, out);
        else dispatch(OVERLOADS(multiply), wide_x, weight, s, part, out);
    });
}

// The products in AVX2, FMA and F16C. Lanes are outputs; a row's activations are broadcast from memory, which costs a
// load port and no arithmetic one. 16 registers hold 4 rows × 16 outputs, so 5 … 8 rows are two turns over a piece of
// the panel that is still in the first-level cache. Two panels are read side by side, because one stream doesn't fill
// the memory's bandwidth while there is arithmetic between its loads (measured: 1.4 against 1.2 × the time of reading).
#include <immintrin.h>

#include <cstring>

#include "linear_kernels.hpp"
#include "rows_kernel.hpp"

namespace taslak {
namespace {

// How far ahead of their use weights are fetched, in each of the two streams. The hardware prefetcher alone keeps too
// little in flight: it stops at page ends, and idles while several rows are being computed.
constexpr int kAhead = 2048;

inline void fetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Four bytes in every lane.
inline __m256i broadcast(const void* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, 4);
    return _mm256_set1_epi32(bits);
}

// Keeps a sum in its register: compilers like to turn a chain of integer additions into a tree and spill the leaves.
inline void pin(__m256i& v) { asm("" : "+x"(v)); }

// ---- bfloat16 ----

constexpr int kPiece = 64;  // k of a piece of a panel, 4 KB: the turns over it find it in the first-level cache

// ROWS × (16 · HALVES) outputs over [0, count) of k; `ahead`: what to fetch meanwhile, FETCHES lines every 4 k.
template <int ROWS, int HALVES, int FETCHES>
inline void multiply(const std::uint8_t* w, const float* x, std::int64_t ldx, int count, __m256 (*out)[4],
                     const std::uint8_t* ahead) {
    const __m256i mask = _mm256_set1_epi32(int(0xFFFF0000));
    __m256 acc[ROWS][2 * HALVES];
    for (int r = 0; r < ROWS; ++r) {
        for (int i = 0; i < 2 * HALVES; ++i) acc[r][i] = out[r][i];
    }
    const auto step = [&](int k) {
        __m256 weights[2 * HALVES];
        for (int h = 0; h < HALVES; ++h) {
            const __m256i pairs = load(w + 64 * k + 32 * h);
            weights[2 * h] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
            weights[2 * h + 1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
        }
        for (int r = 0; r < ROWS; ++r) {
            const __m256 a = _mm256_broadcast_ss(x + r * ldx + k);
            for (int i = 0; i < 2 * HALVES; ++i) acc[r][i] = _mm256_fmadd_ps(weights[i], a, acc[r][i]);
        }
    };
    int k = 0;
    for (; k + 4 <= count; k += 4) {
        for (int i = 0; i < FETCHES; ++i) fetch(ahead + (k / 4 * FETCHES + i) * 64);
        step(k);
        step(k + 1);
        step(k + 2);
        step(k + 3);
    }
    for (; k < count; ++k) step(k);
    for (int r = 0; r < ROWS; ++r) {
        for (int i = 0; i < 2 * HALVES; ++i) out[r][i] = acc[r][i];
    }
}

// One piece of one panel for all the rows. Every turn fetches its share of the next piece, so that memory never waits
// for arithmetic.
template <int ROWS>
inline void multiply_piece(const std::uint8_t* w, const float* x, std::int64_t ldx, int count, __m256 (*acc)[4]) {
    const std::uint8_t* next = w + 64 * kPiece;
    if constexpr (ROWS <= 3) {
        multiply<ROWS, 2, 4>(w, x, ldx, count, acc, next);
    } else {
        constexpr int turns = ROWS > 4 ? 4 : 2, share = 64 * kPiece / turns;
        for (int half = 0; half < 2; ++half) {
            const auto at = [&](int row) { return reinterpret_cast<__m256(*)[4]>(&acc[row][2 * half]); };
            multiply<4, 1, 4 / turns>(w + 32 * half, x, ldx, count, at(0), next);
            next += share;
            if constexpr (ROWS > 4) {
                multiply<ROWS - 4, 1, 4 / turns>(w + 32 * half, x + 4 * ldx, ldx, count, at(4), next);
                next += share;
            }
        }
    }
}

template <int ROWS>
void bfloat16_pair(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    __m256 acc[2][ROWS][4] = {};
    for (std::int64_t k = 0; k < x.k; k += kPiece) {
        const int count = int(x.k - k < kPiece ? x.k - k : kPiece);
        const float* rows = x.x + first * x.ldx + k;
        multiply_piece<ROWS>(a + 64 * k, rows, x.ldx, count, acc[0]);
        multiply_piece<ROWS>(b + 64 * k, rows, x.ldx, count, acc[1]);
    }
    std::memcpy(out, acc, sizeof acc);
}

// ---- quantised ----

// Scale and minimum of a group's 16 outputs.
struct Scales {
    __m256 scale[2], minimum[2];
};

inline __m256 from_half(const std::uint8_t* p) { return _mm256_cvtph_ps(load_half(p)); }
inline __m256 from_single(const std::uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
inline __m256 from_bytes(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// p: behind the group's codes; head: before its 8 groups.
template <Kind KIND>
inline Scales read_scales(const std::uint8_t* p, const std::uint8_t* head) {
    Scales s;
    for (int i = 0; i < 2; ++i) {
        if constexpr (KIND == Kind::int8_half || KIND == Kind::int4_half) s.scale[i] = from_half(p + 16 * i);
        if constexpr (KIND == Kind::int8_single || KIND == Kind::int4_single) s.scale[i] = from_single(p + 32 * i);
        if constexpr (KIND == Kind::int4_half) s.minimum[i] = from_half(p + 32 + 16 * i);
        if constexpr (KIND == Kind::int4_single) s.minimum[i] = from_single(p + 64 + 32 * i);
        if constexpr (KIND == Kind::int4_factors) {
            s.scale[i] = _mm256_mul_ps(from_half(head + 16 * i), from_bytes(p + 8 * i));
            const __m256 positive = _mm256_mul_ps(from_half(head + 32 + 16 * i), from_bytes(p + 16 + 8 * i));
            s.minimum[i] = _mm256_xor_ps(positive, _mm256_set1_ps(-0.0f));
        }
    }
    (void)head;
    return s;
}

// The exact dot products of a group's codes, ROWS × 16 outputs.
template <int ROWS>
inline void int8_dots(const std::uint8_t* w, const std::int16_t* x, std::int64_t k, __m256i (*dots)[2]) {
    for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int pair = 0; pair < kGroup / 2; ++pair) {
        const __m256i low = _mm256_cvtepi8_epi16(load_half(w + 32 * pair));
        const __m256i high = _mm256_cvtepi8_epi16(load_half(w + 32 * pair + 16));
        for (int r = 0; r < ROWS; ++r) {
            const __m256i a = broadcast(x + r * k + 2 * pair);
            dots[r][0] = _mm256_add_epi32(dots[r][0], _mm256_madd_epi16(low, a));
            dots[r][1] = _mm256_add_epi32(dots[r][1], _mm256_madd_epi16(high, a));
            pin(dots[r][0]);
            pin(dots[r][1]);
        }
    }
}

template <int ROWS>
inline void int4_dots(const std::uint8_t* w, const std::int8_t* x, std::int64_t k, __m256i (*dots)[2]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int four = 0; four < kGroup / 4; ++four) {
        const __m256i both = load(w + 32 * four);
        const __m256i low = _mm256_and_si256(both, nibble);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        for (int r = 0; r < ROWS; ++r) {
            const __m256i a = broadcast(x + r * k + 4 * four);
            // 16 bits are enough for a whole group: 16 products of at most 15 · 128
            dots[r][0] = _mm256_add_epi16(dots[r][0], _mm256_maddubs_epi16(low, a));
            dots[r][1] = _mm256_add_epi16(dots[r][1], _mm256_maddubs_epi16(high, a));
            pin(dots[r][0]);
            pin(dots[r][1]);
        }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < ROWS; ++r) {
        for (int i = 0; i < 2; ++i) dots[r][i] = _mm256_madd_epi16(dots[r][i], ones);
    }
}

// Adds one group's share to ROWS ≤ 4 rows.
template <Kind KIND, int ROWS>
inline void add_rows(const std::uint8_t* w, const Scales& s, const Activations& x, int first, std::int64_t group,
                     __m256 (*acc)[2]) {
    const std::int64_t at = first * x.k + group * kGroup, groups = x.k / kGroup;
    const float* scales = x.scales.data() + first * groups + group;
    const float* sums = x.sums.data() + first * groups + group;
    __m256i dots[ROWS][2];
    if constexpr (is_int4(KIND)) {
        int4_dots<ROWS>(w, x.codes.data() + at, x.k, dots);
    } else {
        int8_dots<ROWS>(w, x.wide.data() + at, x.k, dots);
    }
    for (int r = 0; r < ROWS; ++r) {
        const __m256 scale = _mm256_broadcast_ss(scales + r * groups);
        for (int i = 0; i < 2; ++i) {
            const __m256 both = _mm256_mul_ps(s.scale[i], scale);
            acc[r][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][i]), both, acc[r][i]);
        }
        if constexpr (is_int4(KIND)) {
            const __m256 sum = _mm256_broadcast_ss(sums + r * groups);
            for (int i = 0; i < 2; ++i) acc[r][i] = _mm256_fmadd_ps(s.minimum[i], sum, acc[r][i]);
        }
    }
}

template <Kind KIND, int ROWS>
inline void add_group(const std::uint8_t* w, const std::uint8_t* head, const Activations& x, int first,
                      std::int64_t group, __m256 (*acc)[2]) {
    for (int i = 0; i < group_bytes(KIND); i += 64) fetch(w + kAhead + i);
    const Scales s = read_scales<KIND>(w + code_bytes(KIND), head);
    add_rows<KIND, (ROWS > 4 ? 4 : ROWS)>(w, s, x, first, group, acc);
    if constexpr (ROWS > 4) add_rows<KIND, ROWS - 4>(w, s, x, first + 4, group, acc + 4);
}

template <Kind KIND, int ROWS>
void quantised_pair(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    __m256 acc[2][ROWS][2] = {};
    const std::int64_t groups = x.k / kGroup;
    std::int64_t at = 0, head = 0;  // the same in both panels
    for (std::int64_t group = 0; group < groups; ++group, at += group_bytes(KIND)) {
        if constexpr (head_bytes(KIND) > 0) {
            if (group % 8 == 0) {
                head = at;
                at += head_bytes(KIND);
            }
        }
        add_group<KIND, ROWS>(a + at, a + head, x, first, group, acc[0]);
        add_group<KIND, ROWS>(b + at, b + head, x, first, group, acc[1]);
    }
    std::memcpy(out, acc, sizeof acc);
}

// ---- the table ----

template <Kind KIND, int ROWS>
void pair_of(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    if constexpr (KIND == Kind::bfloat16) {
        bfloat16_pair<ROWS>(a, b, x, first, out);
    } else {
        quantised_pair<KIND, ROWS>(a, b, x, first, out);
    }
}

template <Kind KIND>
void pair_of_kind(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
                  float* out) {
    switch (rows) {
        case 1: return pair_of<KIND, 1>(a, b, x, first, out);
        case 2: return pair_of<KIND, 2>(a, b, x, first, out);
        case 3: return pair_of<KIND, 3>(a, b, x, first, out);
        case 4: return pair_of<KIND, 4>(a, b, x, first, out);
        case 5: return pair_of<KIND, 5>(a, b, x, first, out);
        case 6: return pair_of<KIND, 6>(a, b, x, first, out);
        case 7: return pair_of<KIND, 7>(a, b, x, first, out);
        default: return pair_of<KIND, 8>(a, b, x, first, out);
    }
}

void pair(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
          float* out) {
    switch (kind) {
        case Kind::bfloat16: return pair_of_kind<Kind::bfloat16>(a, b, x, first, rows, out);
        case Kind::int8_half: return pair_of_kind<Kind::int8_half>(a, b, x, first, rows, out);
        case Kind::int8_single: return pair_of_kind<Kind::int8_single>(a, b, x, first, rows, out);
        case Kind::int4_half: return pair_of_kind<Kind::int4_half>(a, b, x, first, rows, out);
        case Kind::int4_single: return pair_of_kind<Kind::int4_single>(a, b, x, first, rows, out);
        case Kind::int4_factors: return pair_of_kind<Kind::int4_factors>(a, b, x, first, rows, out);
    }
}

// ---- activations ----

inline float largest(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

void quantise(const float* x, std::int64_t k, std::int8_t* codes, std::int16_t* wide, float* scales, float* sums) {
    const __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps();
    for (std::int64_t group = 0; group < k / kGroup; ++group, x += kGroup, codes += kGroup, wide += kGroup) {
        __m256 v[4], most = zero, taint = zero;
        for (int i = 0; i < 4; ++i) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            most = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), most);
            taint = _mm256_fmadd_ps(v[i], zero, taint);  // 0, or NaN where a number isn't finite
        }
        const int finite = _mm256_movemask_ps(_mm256_cmp_ps(taint, taint, _CMP_ORD_Q)) == 0xFF;
        const float amax = largest(most);
        const __m256 inverse = _mm256_set1_ps(amax > kTiny && finite ? 127.0f / amax : 0.0f);
        __m256i q[4];
        for (int i = 0; i < 4; ++i) {
            // NaN · 0 becomes the smallest integer; cut to zero, since the scale says it all
            const __m256 scaled = _mm256_mul_ps(v[i], inverse);
            q[i] = _mm256_cvtps_epi32(_mm256_and_ps(scaled, _mm256_cmp_ps(scaled, scaled, _CMP_ORD_Q)));
        }
        const __m256i total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        __m128i t = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0b01001110));
        t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0b10110001));
        const __m256i a = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0b11011000);
        const __m256i b = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2], q[3]), 0b11011000);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(wide), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(wide + 16), b);
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0b11011000);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
        scales[group] = finite ? amax / 127.0f : bits_to_float(0x7FC00000);
        sums[group] = float(_mm_cvtsi128_si32(t)) * scales[group];
    }
}

}  // namespace

const LinearKernels linear_avx2{quantise, pair, silu_times<Avx8>};

}  // namespace taslak

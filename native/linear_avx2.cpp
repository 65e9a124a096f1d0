// The products in AVX2, FMA and F16C.
#include "linear_bfloat16.hpp"
#include "linear_quantised.hpp"
#include "rows_kernel.hpp"

namespace taslak {
namespace {

// Keeps a sum in its register: compilers like to turn a chain of integer additions into a tree and spill the leaves.
inline void pin(__m256i& v) { asm("" : "+x"(v)); }

// 8-bit products: int8 as pairs of 16-bit ones, because pairs of full 8-bit products don't fit into 16 bits; int4 as
// they are.
struct Avx2 {
    static constexpr int kTurn = 4;
    static constexpr bool kCrossed = false;

    template <int ROWS>
    static void int8(const std::uint8_t* w, const Activations::Group& x, __m256i (*dots)[2]) {
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int pair = 0; pair < kGroup / 2; ++pair) {
            const __m256i low = _mm256_cvtepi8_epi16(load_half(w + 32 * pair));
            const __m256i high = _mm256_cvtepi8_epi16(load_half(w + 32 * pair + 16));
            for (int r = 0; r < ROWS; ++r) {
                const __m256i a = broadcast(x.wide + r * kGroup + 2 * pair);
                dots[r][0] = _mm256_add_epi32(dots[r][0], _mm256_madd_epi16(low, a));
                dots[r][1] = _mm256_add_epi32(dots[r][1], _mm256_madd_epi16(high, a));
                pin(dots[r][0]);
                pin(dots[r][1]);
            }
        }
    }

    template <int ROWS>
    static void int4(const std::uint8_t* w, const Activations::Group& x, __m256i (*dots)[2]) {
        const __m256i nibble = _mm256_set1_epi8(15);
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m256i both = load(w + 32 * four);
            const __m256i low = _mm256_and_si256(both, nibble);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            for (int r = 0; r < ROWS; ++r) {
                const __m256i a = broadcast(x.codes + r * kGroup + 4 * four);
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
};

inline float largest(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

void quantise(const float* x, std::int64_t k, std::int64_t rows, Activations::OwnGroup to) {
    const __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps();
    for (std::int64_t group = 0; group < k / kGroup; ++group, x += kGroup, to = to.from(rows)) {
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
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.wide), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.wide + 16), b);
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0b11011000);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes), bytes);
        *to.scales = finite ? amax / 127.0f : bits_to_float(0x7FC00000);
        *to.offsets = -128 * _mm_cvtsi128_si32(t);
        *to.sums = float(_mm_cvtsi128_si32(t)) * *to.scales;
    }
}

}  // namespace

extern const LinearKernels linear_avx2{quantise, bfloat16_products, quantised<Avx2>, activate<Avx8>};

}  // namespace taslak

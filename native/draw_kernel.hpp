// Which ids can still win a draw: the noise of core/noise.py hashed for all, bounded without a logarithm. And what
// ranking a row without noise needs.
#pragma once

#include <cstdint>

#include "ops_kernels.hpp"
#include "vec.hpp"

namespace taslak {
namespace {

// splitmix64 (Steele, Lea, Flood 2014), as in noise.py
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15, kMul1 = 0xBF58476D1CE4E5B9, kMul2 = 0x94D049BB133111EB;
constexpr double kLog2e = 1.4426950408889634;

// Everything but the last xor-shift, which leaves the upper 31 bits as they are.
inline std::uint64_t hash_product(std::uint64_t state, std::int64_t id) {
    std::uint64_t h = (std::uint64_t(id) + 1) * kGolden + state;
    h = (h ^ (h >> 30)) * kMul1;
    return (h ^ (h >> 27)) * kMul2;
}

// At least g · log2 e. With w = 1 − u it is −log2 w, where w · 2³¹ is rounded down and log2 replaced by its chord
// between powers of two, which is what the bits of a float say.
inline float noise_bound(std::uint64_t product) {
    const std::uint32_t w = std::uint32_t(~product >> 33);
    return 158.0f - float(std::int32_t(float_to_bits(float(w)))) * 0x1p-23f;  // 158 = 31 + the exponent's bias
}

// z · log2 e in float32. Halves, because the difference of two finite floats may be none.
inline float scaled(const Scores& s, std::int64_t i) {
    return s.logits ? (s.logits[i] * 0.5f - s.largest * 0.5f) * s.scale : float(s.z[i] * kLog2e);
}

inline std::int64_t find_scalar(const Scores& s, std::int64_t first, std::int64_t last, std::uint64_t state,
                                float bound, unsigned& which) {
    for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t id = s.ids ? s.ids[i] : i;
        which = scaled(s, i) + noise_bound(hash_product(state, id)) >= bound;
        if (which) return i;
    }
    return last;
}

inline float largest_scalar(const float* x, std::int64_t count) {
    float largest = -INFINITY;
    for (std::int64_t i = 0; i < count; ++i) {
        if (x[i] != x[i]) return x[i];
        if (x[i] > largest) largest = x[i];
    }
    return largest;
}

inline std::int64_t above_scalar(const float* x, std::int64_t first, std::int64_t last, float bound) {
    while (first < last && !(x[first] > bound)) ++first;
    return first;
}

// Four sums side by side, then one: the same additions whatever V is.
template <class V>
float exp_sum(const float* x, float largest, std::int64_t count) {
    V sums[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};
    const V most = V::set(largest);
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        for (int j = 0; j < 4; ++j) sums[j] = sums[j] + steady_exp(V::load(x + i + 8 * j) - most);
    }
    float rest = 0.0f;
    for (; i < count; ++i) rest += sum(steady_exp(V::set(x[i]) - most)) * 0.125f;
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

#ifdef TASLAK_AVX2

inline std::int64_t above_avx2(const float* x, std::int64_t first, std::int64_t last, float bound) {
    const __m256 bounds = _mm256_set1_ps(bound);
    for (; first + 32 <= last; first += 32) {
        const __m256 low = _mm256_max_ps(_mm256_loadu_ps(x + first), _mm256_loadu_ps(x + first + 8));
        const __m256 high = _mm256_max_ps(_mm256_loadu_ps(x + first + 16), _mm256_loadu_ps(x + first + 24));
        if (_mm256_movemask_ps(_mm256_cmp_ps(_mm256_max_ps(low, high), bounds, _CMP_GT_OQ))) break;
    }
    return above_scalar(x, first, last, bound);
}

// Low 64 bits of a · b, from 32-bit products.
inline __m256i multiply(__m256i a, std::uint64_t b) {
    const __m256i low = _mm256_set1_epi64x(std::int64_t(b & 0xFFFFFFFF));
    const __m256i high = _mm256_set1_epi64x(std::int64_t(b >> 32));
    const __m256i left = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), right = _mm256_mul_epu32(a, high);
    const __m256i cross = _mm256_add_epi64(left, right);
    return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}

// steps: state + (id + 1) · kGolden
inline __m256i hash_product(__m256i steps) {
    const __m256i h = multiply(_mm256_xor_si256(steps, _mm256_srli_epi64(steps, 30)), kMul1);
    return multiply(_mm256_xor_si256(h, _mm256_srli_epi64(h, 27)), kMul2);
}

// Bits of the eight ids that can reach the bound. a, b: products of ids 0, 1, 4, 5 and of ids 2, 3, 6, 7, the order
// in which their upper halves are zipped; z: z · log2 e.
inline unsigned can_reach(__m256i a, __m256i b, __m256 z, __m256 bound) {
    const __m256 upper = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0b11011101);
    const __m256i w = _mm256_srli_epi32(_mm256_xor_si256(_mm256_castps_si256(upper), _mm256_set1_epi32(-1)), 1);
    const __m256 chord = _mm256_cvtepi32_ps(_mm256_castps_si256(_mm256_cvtepi32_ps(w)));
    const __m256 noise = _mm256_fnmadd_ps(chord, _mm256_set1_ps(0x1p-23f), _mm256_set1_ps(158.0f));
    return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_add_ps(z, noise), bound, _CMP_GE_OQ)));
}

inline std::int64_t find_in_row(const Scores& s, std::int64_t first, std::int64_t last, std::uint64_t state,
                                float bound, unsigned& which) {
    const auto steps_at = [&](std::int64_t id) { return std::int64_t((std::uint64_t(id) + 1) * kGolden + state); };
    const __m256 largest = _mm256_set1_ps(s.largest * 0.5f), scale = _mm256_set1_ps(s.scale);
    const __m256 half = _mm256_set1_ps(0.5f), bounds = _mm256_set1_ps(bound);
    const __m256i two = _mm256_set1_epi64x(std::int64_t(2 * kGolden));
    const __m256i eight = _mm256_set1_epi64x(std::int64_t(8 * kGolden));
    std::int64_t i = first;
    __m256i a = _mm256_setr_epi64x(steps_at(i), steps_at(i + 1), steps_at(i + 4), steps_at(i + 5));
    for (; i + 8 <= last; i += 8, a = _mm256_add_epi64(a, eight)) {
        const __m256 z = _mm256_mul_ps(_mm256_fmsub_ps(_mm256_loadu_ps(s.logits + i), half, largest), scale);
        which = can_reach(hash_product(a), hash_product(_mm256_add_epi64(a, two)), z, bounds);
        if (which) return i;
    }
    return find_scalar(s, i, last, state, bound, which);
}

// z4: i -> z · log2 e of i … i + 3
template <class Z>
std::int64_t find_listed(const Scores& s, Z z4, std::int64_t first, std::int64_t last, std::uint64_t state, float bound,
                         unsigned& which) {
    const __m256i start = _mm256_set1_epi64x(std::int64_t(kGolden + state));
    const __m256 bounds = _mm256_set1_ps(bound);
    const auto product = [&](__m256i ids) { return hash_product(_mm256_add_epi64(multiply(ids, kGolden), start)); };
    std::int64_t i = first;
    for (; i + 8 <= last; i += 8) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s.ids + i));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s.ids + i + 4));
        const __m256i a = product(_mm256_permute2x128_si256(low, high, 0x20));
        const __m256i b = product(_mm256_permute2x128_si256(low, high, 0x31));
        which = can_reach(a, b, _mm256_set_m128(z4(i + 4), z4(i)), bounds);
        if (which) return i;
    }
    return find_scalar(s, i, last, state, bound, which);
}

inline std::int64_t find_avx2(const Scores& s, std::int64_t first, std::int64_t last, std::uint64_t state, float bound,
                              unsigned& which) {
    if (!s.ids) return find_in_row(s, first, last, state, bound, which);
    const auto of_row = [&](std::int64_t i) {
        const __m128 half = _mm_set1_ps(0.5f), largest = _mm_set1_ps(s.largest * 0.5f);
        return _mm_mul_ps(_mm_fmsub_ps(_mm_loadu_ps(s.logits + i), half, largest), _mm_set1_ps(s.scale));
    };
    const auto as_it_is = [&](std::int64_t i) {
        return _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_loadu_pd(s.z + i), _mm256_set1_pd(kLog2e)));
    };
    return s.logits ? find_listed(s, of_row, first, last, state, bound, which)
                    : find_listed(s, as_it_is, first, last, state, bound, which);
}

inline float largest_avx2(const float* x, std::int64_t count) {
    __m256 high = _mm256_set1_ps(-INFINITY), nan = _mm256_setzero_ps();
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        high = _mm256_max_ps(high, v);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(nan)) return NAN;
    float lanes[8];
    _mm256_storeu_ps(lanes, high);
    const float most = largest_scalar(lanes, 8), rest = largest_scalar(x + i, count - i);
    return most > rest ? most : rest;
}

#endif

}  // namespace
}  // namespace taslak

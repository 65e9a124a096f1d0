// Eight float32 lanes, twice: as an AVX2 register and as a plain array that rounds the same way.
//
// A kernel is written once, as a template over one of the two. Every operation is one IEEE operation a lane, the
// reduction is one fixed tree and multiply-add is always fused, so both give the same bits: the scalar form is
// the fallback and, in the tests, the proof that the vector form depends on its operands alone.
//
// All of it is in an unnamed namespace, a copy for each file that includes it: code that was compiled for AVX2 must
// never be linked into a file that wasn't.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define TASLAK_AVX2 1
#endif

namespace taslak {
namespace {

using bfloat16 = std::uint16_t;  // the upper half of a float32

inline float bits_to_float(std::uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline std::uint32_t float_to_bits(float f) {
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return bits_to_float(std::uint32_t(x) << 16); }

// Round to nearest, ties to even, as PyTorch does; a NaN stays one.
inline bfloat16 to_bfloat16(float x) {
    if (x != x) return 0x7FC0;
    const std::uint32_t bits = float_to_bits(x);
    return bfloat16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

struct Scalar8 {
    static constexpr int kLanes = 8;
    float lane[8];

    template <class F>
    static Scalar8 each(F f) {
        Scalar8 r;
        for (int i = 0; i < 8; ++i) r.lane[i] = f(i);
        return r;
    }
    static Scalar8 set(float x) {
        return each([&](int) { return x; });
    }
    static Scalar8 load(const float* p) {
        return each([&](int i) { return p[i]; });
    }
    static Scalar8 load(const bfloat16* p) {
        return each([&](int i) { return to_float(p[i]); });
    }
    void store(float* p) const {
        for (int i = 0; i < 8; ++i) p[i] = lane[i];
    }
    void store(bfloat16* p) const {
        for (int i = 0; i < 8; ++i) p[i] = to_bfloat16(lane[i]);
    }
};

inline Scalar8 operator+(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Scalar8 operator-(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Scalar8 operator*(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Scalar8 operator/(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] / b.lane[i]; });
}
// a · b + c, rounded once
inline Scalar8 fma(Scalar8 a, Scalar8 b, Scalar8 c) {
    return Scalar8::each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
// As the x86 instructions: the second operand where either is a NaN.
inline Scalar8 min(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Scalar8 max(Scalar8 a, Scalar8 b) {
    return Scalar8::each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Scalar8 floor(Scalar8 a) {
    return Scalar8::each([&](int i) { return std::floor(a.lane[i]); });
}
// 2ⁿ for whole n in [−127, 127]; 2⁻¹²⁷ gives zero, a NaN anything.
inline Scalar8 power_of_two(Scalar8 n) {
    return Scalar8::each([&](int i) {
        const std::int32_t whole = n.lane[i] == n.lane[i] ? std::int32_t(n.lane[i]) : 0;
        return bits_to_float(std::uint32_t(whole + 127) << 23);
    });
}
inline float sum(Scalar8 a) {
    const float* l = a.lane;
    return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}
// The sums of eight registers, each in the order of `sum`.
inline Scalar8 sums(const Scalar8* a) {
    return Scalar8::each([&](int i) { return sum(a[i]); });
}

#ifdef TASLAK_AVX2

struct Avx8 {
    static constexpr int kLanes = 8;
    __m256 lanes;

    static Avx8 set(float x) { return {_mm256_set1_ps(x)}; }
    static Avx8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Avx8 load(const bfloat16* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, lanes); }
    void store(bfloat16* p) const {
        const __m256i bits = _mm256_castps_si256(lanes);
        const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        __m256i r = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), even);
        r = _mm256_srli_epi32(r, 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
        r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC0), nan);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0b1000);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(r));
    }
};

inline Avx8 operator+(Avx8 a, Avx8 b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
inline Avx8 operator-(Avx8 a, Avx8 b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
inline Avx8 operator*(Avx8 a, Avx8 b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
inline Avx8 operator/(Avx8 a, Avx8 b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
inline Avx8 fma(Avx8 a, Avx8 b, Avx8 c) { return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
inline Avx8 min(Avx8 a, Avx8 b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
inline Avx8 max(Avx8 a, Avx8 b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
inline Avx8 floor(Avx8 a) { return {_mm256_floor_ps(a.lanes)}; }
inline Avx8 power_of_two(Avx8 n) {
    const __m256i whole = _mm256_add_epi32(_mm256_cvttps_epi32(n.lanes), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(whole, 23))};
}
inline Avx8 sums(const Avx8* a) {
    const __m256 ab = _mm256_hadd_ps(a[0].lanes, a[1].lanes), cd = _mm256_hadd_ps(a[2].lanes, a[3].lanes);
    const __m256 ef = _mm256_hadd_ps(a[4].lanes, a[5].lanes), gh = _mm256_hadd_ps(a[6].lanes, a[7].lanes);
    const __m256 abcd = _mm256_hadd_ps(ab, cd), efgh = _mm256_hadd_ps(ef, gh);  // low and high halves apart
    return {_mm256_add_ps(_mm256_permute2f128_ps(abcd, efgh, 0x20), _mm256_permute2f128_ps(abcd, efgh, 0x31))};
}
inline float sum(Avx8 a) {
    const __m128 low = _mm256_castps256_ps128(a.lanes), high = _mm256_extractf128_ps(a.lanes, 1);
    __m128 halves = _mm_hadd_ps(low, high);  // l0+l1, l2+l3, l4+l5, l6+l7
    halves = _mm_hadd_ps(halves, halves);
    return _mm_cvtss_f32(_mm_add_ss(halves, _mm_movehdup_ps(halves)));
}

#endif

// The first `count` < 8 lanes; zeros behind them.
template <class V>
V load_part(const float* p, int count) {
    float lanes[8] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i];
    return V::load(lanes);
}

template <class V, class T>
void store_part(V v, T* p, int count) {
    T lanes[8];
    v.store(lanes);
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// exp(x) = 2ⁿ · exp(r), |r| ≤ ln 2 / 2, with Cody and Waite's two-part ln 2 and a Taylor polynomial: about 1 ulp,
// exp(0) = 1, zero below −87.3. The same bits in any lane, which no library's vector exp promises.
template <class V>
V steady_exp(V x) {
    // operands in this order let a NaN through
    x = min(V::set(88.0f), max(V::set(-88.0f), x));
    const V n = floor(fma(x, V::set(1.4426950408889634f), V::set(0.5f)));
    V r = fma(n, V::set(-0.693359375f), x);
    r = fma(n, V::set(2.12194440e-4f), r);
    V p = V::set(1.0f / 5040.0f);
    for (float term : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
        p = fma(p, r, V::set(term));
    }
    return p * power_of_two(n);
}

}  // namespace
}  // namespace taslak

// 8-bit products with VNNI on 256-bit vectors: unsigned × signed, four along k at once, summed in 32 bits by the one
// instruction `dot`.
#pragma once

#include "linear_quantised.hpp"

namespace taslak {
namespace {

template <__m256i (*dot)(__m256i, __m256i, __m256i)>
struct Vnni {
    static constexpr int kTurn = 4;
    static constexpr bool kCrossed = true;

    template <int ROWS>
    static void int8(const std::uint8_t* w, const Activations::Group& x, __m256i (*dots)[2]) {
        // weights + 128 are the unsigned side; what that adds, each row starts without
        const __m256i offset = _mm256_set1_epi8(char(0x80));
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_set1_epi32(x.offsets[r]);
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m256i a = _mm256_xor_si256(load(w + 64 * four), offset);
            const __m256i b = _mm256_xor_si256(load(w + 64 * four + 32), offset);
            const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
            for (int r = 0; r < ROWS; ++r) {
                const __m256i codes = broadcast(x.codes + r * kGroup + 4 * four);
                dots[r][0] = dot(dots[r][0], low, codes);
                dots[r][1] = dot(dots[r][1], high, codes);
            }
        }
    }

    template <int ROWS>
    static void int4(const std::uint8_t* w, const Activations::Group& x, __m256i (*dots)[2]) {
        const __m256i nibble = _mm256_set1_epi8(15);
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m256i both = load(w + 32 * four), low = _mm256_and_si256(both, nibble);
            for (int r = 0; r < ROWS; ++r) {
                const __m256i a = broadcast(x.codes + r * kGroup + 4 * four);
                dots[r][0] = dot(dots[r][0], low, a);
                dots[r][1] = dot(dots[r][1], both, a);  // low + 16 · high
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            dots[r][1] = _mm256_srai_epi32(_mm256_sub_epi32(dots[r][1], dots[r][0]), 4);
        }
    }
};

}  // namespace
}  // namespace taslak

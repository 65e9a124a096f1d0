// 8-bit products with VNNI: unsigned × signed, four along k at once, summed in 32 bits. `dot` is the one instruction, which
// has two encodings and therefore two files: AVX-VNNI and AVX-512 VNNI (256 bits wide here too).
#pragma once

#include "linear_quantised.hpp"

namespace taslak {
namespace {

template <__m256i (*dot)(__m256i, __m256i, __m256i)>
struct Vnni {
    static constexpr int kTurn = 4;
    static constexpr bool kCrossed = true;

    template <int ROWS>
    static void int8(const std::uint8_t* w, const Activations& rows, int first, std::int64_t k, __m256i (*dots)[2]) {
        const std::int8_t* x = rows.codes.data() + first * rows.k + k;
        // activations + 128 are the unsigned side; what that adds is 128 · Σ codes, the same for every row
        const __m256i offset = _mm256_set1_epi8(char(0x80));
        __m256i excess[2] = {};
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m256i a = load(w + 64 * four), b = load(w + 64 * four + 32);
            const __m256i weights[2] = {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
            for (int i = 0; i < 2; ++i) excess[i] = dot(excess[i], offset, weights[i]);
            for (int r = 0; r < ROWS; ++r) {
                const __m256i shifted = _mm256_xor_si256(broadcast(x + r * rows.k + 4 * four), offset);
                for (int i = 0; i < 2; ++i) dots[r][i] = dot(dots[r][i], shifted, weights[i]);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            for (int i = 0; i < 2; ++i) dots[r][i] = _mm256_sub_epi32(dots[r][i], excess[i]);
        }
    }

    template <int ROWS>
    static void int4(const std::uint8_t* w, const Activations& rows, int first, std::int64_t k, __m256i (*dots)[2]) {
        const std::int8_t* x = rows.codes.data() + first * rows.k + k;
        const __m256i nibble = _mm256_set1_epi8(15);
        for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m256i both = load(w + 32 * four);
            const __m256i low = _mm256_and_si256(both, nibble);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            for (int r = 0; r < ROWS; ++r) {
                const __m256i a = broadcast(x + r * rows.k + 4 * four);
                dots[r][0] = dot(dots[r][0], low, a);
                dots[r][1] = dot(dots[r][1], high, a);
            }
        }
    }
};

}  // namespace
}  // namespace taslak

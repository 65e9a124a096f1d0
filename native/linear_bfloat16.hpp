// Products with bfloat16 weights on 256-bit vectors: float32 activations, products and sums.
#pragma once

#include "linear_vector.hpp"

namespace taslak {
namespace {

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

void bfloat16_products(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
                       float* out) {
    with_rows(rows, [&](auto count) { bfloat16_pair<decltype(count)::value>(a, b, x, first, out); });
}

}  // namespace
}  // namespace taslak

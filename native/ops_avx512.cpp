// Attention's products on 512-bit vectors: two queries side by side where scores are summed, twice as much of a head
// where values are mixed. Every sum is the one that 256-bit vectors give, bit for bit; the rest is AVX2's.
#include "attention_kernel.hpp"
#include "draw_kernel.hpp"
#include "ops_kernels.hpp"
#include "rows_kernel.hpp"

namespace taslak {
namespace {

inline __m512 side_by_side(__m256 a, __m256 b) {
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(a)), _mm256_castps_pd(b), 1));
}
inline __m512 twice(const float* p) {
    return _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_loadu_pd(reinterpret_cast<const double*>(p))));
}
inline __m256 low(__m512 v) { return _mm512_castps512_ps256(v); }
inline __m256 high(__m512 v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }

// Scores of PAIRS pairs of queries and 4 keys.
template <int PAIRS>
void score_pairs(const float* q, const float* k, int width, float scale, float* out) {
    __m512 acc[PAIRS][4];
    for (auto& pair : acc) for (__m512& a : pair) a = _mm512_setzero_ps();
    for (int c = 0; c < width; c += 8) {
        __m512 key[4];
        for (int j = 0; j < 4; ++j) key[j] = twice(k + j * width + c);
        for (int i = 0; i < PAIRS; ++i) {
            const float* of_pair = q + 2 * i * width + c;
            const __m512 both = side_by_side(_mm256_loadu_ps(of_pair), _mm256_loadu_ps(of_pair + width));
            for (int j = 0; j < 4; ++j) acc[i][j] = _mm512_fmadd_ps(both, key[j], acc[i][j]);
        }
    }
    for (int i = 0; i < PAIRS; ++i) {
        Avx8 of_key[8];  // of the first query, then of the second
        for (int j = 0; j < 4; ++j) of_key[j] = {low(acc[i][j])}, of_key[4 + j] = {high(acc[i][j])};
        const Avx8 scores = sums(of_key) * Avx8::set(scale);
        _mm_storeu_ps(out + 2 * i * kScores, _mm256_castps256_ps128(scores.lanes));
        _mm_storeu_ps(out + (2 * i + 1) * kScores, _mm256_extractf128_ps(scores.lanes, 1));
    }
}

void score_wide(const float* q, int queries, const float* k, int keys, int width, float scale, float* out) {
    int i = 0;
    const auto step = [&](auto kernel, int count) {
        for (; i + count <= queries; i += count) {
            for (int j = 0; j < keys; j += 4) kernel(q + i * width, k + j * width, width, scale, out + i * kScores + j);
        }
    };
    step(score_pairs<2>, 4);
    step(score_pairs<1>, 2);
    if (i < queries) score<Avx8>(q + i * width, queries - i, k, keys, width, scale, out + i * kScores);
}

// `mix_tile` for Q queries and D registers of the head.
template <int Q, int D>
void mix_wide_tile(const float* weights, const float* v, int keys, int width, float* out) {
    __m512 acc[Q][D];
    for (int i = 0; i < Q; ++i) for (int c = 0; c < D; ++c) acc[i][c] = _mm512_loadu_ps(out + i * width + 16 * c);
    for (int j = 0; j < keys; ++j) {
        __m512 value[D];
        for (int c = 0; c < D; ++c) value[c] = _mm512_loadu_ps(v + j * width + 16 * c);
        for (int i = 0; i < Q; ++i) {
            const __m512 weight = _mm512_set1_ps(weights[i * kScores + j]);
            for (int c = 0; c < D; ++c) acc[i][c] = _mm512_fmadd_ps(weight, value[c], acc[i][c]);
        }
    }
    for (int i = 0; i < Q; ++i) for (int c = 0; c < D; ++c) _mm512_storeu_ps(out + i * width + 16 * c, acc[i][c]);
}

template <int Q>
void mix_wide_rows(const float* weights, const float* v, int keys, int width, float* out) {
    int c = 0;
    for (; c + 64 <= width; c += 64) mix_wide_tile<Q, 4>(weights, v + c, keys, width, out + c);
    for (; c + 16 <= width; c += 16) mix_wide_tile<Q, 1>(weights, v + c, keys, width, out + c);
    if (c < width) mix_tile<Avx8, Q, 1>(weights, v + c, keys, width, out + c);
}

void mix_wide(const float* weights, int queries, const float* v, int keys, int width, float* out) {
    int i = 0;
    const auto step = [&](auto kernel, int count) {
        for (; i + count <= queries; i += count) kernel(weights + i * kScores, v, keys, width, out + i * width);
    };
    step(mix_wide_rows<4>, 4);
    step(mix_wide_rows<3>, 3);
    step(mix_wide_rows<2>, 2);
    step(mix_wide_rows<1>, 1);
}

struct Wide {
    static constexpr auto score = score_wide;
    static constexpr auto mix = mix_wide;
};

}  // namespace

const OpsKernels avx512_ops = {
    attend<Avx8, Wide>, write<Avx8>, norm<Avx8>, rotate<Avx8>, largest_avx2,
    exp_sum<Avx8>, above_avx2, find_avx2,
};

}  // namespace taslak

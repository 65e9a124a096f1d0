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
    const auto with = [&](auto pairs) {
        return [=](int at) {
            for (int j = 0; j < keys; j += 4) pairs(q + at * width, k + j * width, width, scale, out + at * kScores + j);
        };
    };
    in_steps(i, queries, 4, with(score_pairs<2>));
    in_steps(i, queries, 2, with(score_pairs<1>));
    if (i < queries) score<Avx8>(q + i * width, queries - i, k, keys, width, scale, out + i * kScores);
}

// Sixteen lanes, as much of them as mixing and `steady_exp` need.
struct Avx16 {
    static constexpr int kLanes = 16;
    __m512 lanes;

    static Avx16 set(float x) { return {_mm512_set1_ps(x)}; }
    static Avx16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    void store(float* p) const { _mm512_storeu_ps(p, lanes); }
};

inline Avx16 operator-(Avx16 a, Avx16 b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Avx16 operator*(Avx16 a, Avx16 b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Avx16 fma(Avx16 a, Avx16 b, Avx16 c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
inline Avx16 min(Avx16 a, Avx16 b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
inline Avx16 max(Avx16 a, Avx16 b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
inline Avx16 floor(Avx16 a) { return {_mm512_roundscale_ps(a.lanes, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
inline Avx16 power_of_two(Avx16 n) {
    const __m512i whole = _mm512_add_epi32(_mm512_cvttps_epi32(n.lanes), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(whole, 23))};
}

// Lanes are added to the sums in the order in which registers of eight would be.
Avx8 weigh_wide(float* scores, int begin, int end, float largest) {
    Avx8 weights = Avx8::set(0.0f);
    int j = begin;
    for (; j + 16 <= end; j += 16) {
        const Avx16 weight = steady_exp(Avx16::load(scores + j) - Avx16::set(largest));
        weight.store(scores + j);
        weights = weights + Avx8{low(weight.lanes)};
        weights = weights + Avx8{high(weight.lanes)};
    }
    return weights + weigh<Avx8>(scores, j, end, largest);
}

void mix_wide(const float* weights, int queries, const float* v, int keys, int width, float* out) {
    int i = 0;
    const auto with = [&](auto rows) {
        return [=](int at) { rows(weights + at * kScores, v, keys, width, out + at * width); };
    };
    in_steps(i, queries, 4, with(mix_rows<Avx16, Avx8, 4, 4>));
    in_steps(i, queries, 3, with(mix_rows<Avx16, Avx8, 3, 4>));
    in_steps(i, queries, 2, with(mix_rows<Avx16, Avx8, 2, 4>));
    in_steps(i, queries, 1, with(mix_rows<Avx16, Avx8, 1, 4>));
}

struct Wide {
    static constexpr auto score = score_wide;
    static constexpr auto weigh = weigh_wide;
    static constexpr auto mix = mix_wide;
};

}  // namespace

const OpsKernels avx512_ops = {
    attend<Avx8, Wide>, write<Avx8>, norm<Avx8>, layer_norm<Avx8>, rotate<Avx8>, scale_and_cap<Avx8>, largest_avx2,
    exp_sum<Avx8>, above_avx2, find_avx2,
};

}  // namespace taslak

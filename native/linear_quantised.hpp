// Products with int8 and int4 weights on 256-bit vectors. How 8-bit numbers are multiplied is a template's argument, since
// that is where instruction sets differ; a file that includes this is compiled for one of them.
#pragma once

#include "linear_vector.hpp"

namespace taslak {
namespace {

// How far ahead of their use weights are fetched, in each of the two streams. The hardware prefetcher alone keeps too
// little in flight: it stops at page ends, and idles while several rows are being computed.
constexpr int kAhead = 2048;

// Scale and minimum of a group's 16 outputs.
struct Scales {
    __m256 scale[2], minimum[2];
};

inline __m256 from_half(const std::uint8_t* p) { return _mm256_cvtph_ps(load_half(p)); }
inline __m256 from_single(const std::uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
inline __m256 from_bytes(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// What 8 groups share: d and −dmin. Elsewhere than in int4_factors nothing.
template <Kind KIND>
inline Scales read_head(const std::uint8_t* p) {
    Scales s;
    if constexpr (KIND == Kind::int4_factors) {
        for (int i = 0; i < 2; ++i) {
            s.scale[i] = from_half(p + 16 * i);
            s.minimum[i] = _mm256_xor_ps(from_half(p + 32 + 16 * i), _mm256_set1_ps(-0.0f));
        }
    }
    (void)p;
    return s;
}

// p: behind the group's codes; head: of its 8 groups.
template <Kind KIND>
inline Scales read_scales(const std::uint8_t* p, const Scales& head) {
    Scales s;
    for (int i = 0; i < 2; ++i) {
        if constexpr (KIND == Kind::int8_half || KIND == Kind::int4_half) s.scale[i] = from_half(p + 16 * i);
        if constexpr (KIND == Kind::int8_single || KIND == Kind::int4_single) s.scale[i] = from_single(p + 32 * i);
        if constexpr (KIND == Kind::int4_half) s.minimum[i] = from_half(p + 32 + 16 * i);
        if constexpr (KIND == Kind::int4_single) s.minimum[i] = from_single(p + 64 + 32 * i);
        if constexpr (KIND == Kind::int4_factors) {
            s.scale[i] = _mm256_mul_ps(head.scale[i], from_bytes(p + 8 * i));
            s.minimum[i] = _mm256_mul_ps(head.minimum[i], from_bytes(p + 16 + 8 * i));
        }
    }
    (void)head;
    return s;
}

// Adds one group's share to ROWS rows.
//
// Dots has int8<ROWS>(codes, x, dots) and int4<ROWS>(…): the exact dot products of a group's codes with ROWS rows,
// ROWS × 16 outputs, and
//   kTurn      the most rows at once that its registers hold
//   kCrossed   int8 leaves outputs 0-3 and 8-11 in the first vector, 4-7 and 12-15 in the second
template <class Dots, Kind KIND, int ROWS>
inline void add_rows(const std::uint8_t* w, const Scales& s, const Activations::Group& x, __m256 (*acc)[2]) {
    __m256i dots[ROWS][2];
    if constexpr (is_int4(KIND)) {
        Dots::template int4<ROWS>(w, x, dots);
    } else {
        Dots::template int8<ROWS>(w, x, dots);
    }
    for (int r = 0; r < ROWS; ++r) {
        const __m256 scale = _mm256_broadcast_ss(x.scales + r);
        for (int i = 0; i < 2; ++i) {
            const __m256 both = _mm256_mul_ps(s.scale[i], scale);
            acc[r][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][i]), both, acc[r][i]);
        }
        if constexpr (is_int4(KIND)) {
            const __m256 sum = _mm256_broadcast_ss(x.sums + r);
            for (int i = 0; i < 2; ++i) acc[r][i] = _mm256_fmadd_ps(s.minimum[i], sum, acc[r][i]);
        }
    }
}

// Changes between outputs in order and crossed, either way.
inline void cross(__m256* v) {
    const __m256 first = _mm256_permute2f128_ps(v[0], v[1], 0x20);
    v[1] = _mm256_permute2f128_ps(v[0], v[1], 0x31);
    v[0] = first;
}

template <class Dots, Kind KIND>
constexpr bool is_crossed = Dots::kCrossed && !is_int4(KIND);

template <class Dots, Kind KIND, int ROWS>
inline void add_group(const std::uint8_t* w, const Scales& head, const Activations::Group& x, __m256 (*acc)[2]) {
    for (int i = 0; i < group_bytes(KIND); i += 64) fetch(w + kAhead + i);
    Scales s = read_scales<KIND>(w + code_bytes(KIND), head);
    if constexpr (is_crossed<Dots, KIND>) cross(s.scale);
    constexpr int turn = Dots::kTurn;
    add_rows<Dots, KIND, (ROWS > turn ? turn : ROWS)>(w, s, x, acc);
    if constexpr (ROWS > turn) add_rows<Dots, KIND, ROWS - turn>(w, s, x.from(turn), acc + turn);
}

template <class Dots, Kind KIND, int ROWS>
void quantised_pair(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    __m256 acc[2][ROWS][2] = {};
    const std::int64_t groups = x.k / kGroup;
    std::int64_t at = 0;  // the same in both panels
    Scales heads[2] = {};
    for (std::int64_t group = 0; group < groups; ++group, at += group_bytes(KIND)) {
        if constexpr (head_bytes(KIND) > 0) {
            if (group % 8 == 0) {
                heads[0] = read_head<KIND>(a + at);
                heads[1] = read_head<KIND>(b + at);
                at += head_bytes(KIND);
            }
        }
        const Activations::Group rows = x.group(first, ROWS, group);
        add_group<Dots, KIND, ROWS>(a + at, heads[0], rows, acc[0]);
        add_group<Dots, KIND, ROWS>(b + at, heads[1], rows, acc[1]);
    }
    if constexpr (is_crossed<Dots, KIND>) {
        for (auto& panel : acc) {
            for (auto& row : panel) cross(row);
        }
    }
    std::memcpy(out, acc, sizeof acc);
}

template <class Dots>
void quantised(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
               float* out) {
    with_rows(rows, [&](auto count) {
        constexpr int ROWS = decltype(count)::value;
        switch (kind) {
            case Kind::int8_half: return quantised_pair<Dots, Kind::int8_half, ROWS>(a, b, x, first, out);
            case Kind::int8_single: return quantised_pair<Dots, Kind::int8_single, ROWS>(a, b, x, first, out);
            case Kind::int4_half: return quantised_pair<Dots, Kind::int4_half, ROWS>(a, b, x, first, out);
            case Kind::int4_single: return quantised_pair<Dots, Kind::int4_single, ROWS>(a, b, x, first, out);
            case Kind::int4_factors: return quantised_pair<Dots, Kind::int4_factors, ROWS>(a, b, x, first, out);
            case Kind::bfloat16: return;
        }
    });
}

}  // namespace
}  // namespace taslak

// The products in AVX-512 with VNNI: a vector holds 16 outputs, the 32 registers all 8 rows of a block, and a row's
// activations are broadcast by the instruction that multiplies them. Same sums as AVX2's, bit for bit.
#include "linear_vector.hpp"

namespace taslak {
namespace {

constexpr int kAhead = 2048;  // as in linear_quantised.hpp
constexpr int kPiece = 64;    // k of a piece of a bfloat16 panel: 4 KB of either stream in turn

inline __m512i load_whole(const void* p) { return _mm512_loadu_si512(p); }
inline __m512 from_half(const std::uint8_t* p) { return _mm512_cvtph_ps(load(p)); }
inline __m512 from_single(const std::uint8_t* p) { return _mm512_loadu_ps(p); }
inline __m512 from_bytes(const std::uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_half(p))); }

// A number the compiler knows nothing about. Where it sees that one panel's activations are the next one's too, it keeps
// them all, broadcast, on the stack, and then reads 16 times as much from there.
inline std::int64_t unknown(std::int64_t number) {
    asm volatile("" : "+r"(number));  // volatile, or two of them are one
    return number;
}

// Scale and minimum of a group's 16 outputs; as a head, what 8 groups share of them.
struct Scales {
    __m512 scale, minimum;
};

// p: before the 8 groups.
inline Scales read_head(const std::uint8_t* p) {
    return {from_half(p), _mm512_sub_ps(_mm512_set1_ps(-0.0f), from_half(p + 32))};
}

// p: behind the group's codes.
template <Kind KIND>
inline Scales read_scales(const std::uint8_t* p, const Scales& head) {
    Scales s;
    if constexpr (KIND == Kind::int8_half || KIND == Kind::int4_half) s.scale = from_half(p);
    if constexpr (KIND == Kind::int8_single || KIND == Kind::int4_single) s.scale = from_single(p);
    if constexpr (KIND == Kind::int4_half) s.minimum = from_half(p + 32);
    if constexpr (KIND == Kind::int4_single) s.minimum = from_single(p + 64);
    if constexpr (KIND == Kind::int4_factors) {
        s.scale = _mm512_mul_ps(head.scale, from_bytes(p));
        s.minimum = _mm512_mul_ps(head.minimum, from_bytes(p + 16));
    }
    (void)head;
    return s;
}

typedef std::int32_t __attribute__((may_alias, aligned(1))) Four;  // codes, four along k

// The exact dot products of a group's codes with ROWS rows.
template <Kind KIND, int ROWS>
inline void multiply_codes(const std::uint8_t* w, const Activations::Group& x, __m512i* dots) {
    // The intrinsics never become the form that broadcasts its operand from memory.
    const auto dot = [&](__m512i& sum, __m512i weights, int row, int four) {
        const std::int8_t* codes = x.codes + row * kGroup + 4 * four;
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const Four*>(codes)));
    };
    if constexpr (is_int4(KIND)) {
        // lanes 0-7 take the low half-bytes, lanes 8-15 the high ones, 16 times as large
        const __m512i mask = _mm512_inserti64x4(_mm512_set1_epi8(15), _mm256_set1_epi8(char(0xF0)), 1);
        for (int r = 0; r < ROWS; ++r) dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m512i weights = _mm512_and_si512(_mm512_broadcast_i64x4(load(w + 32 * four)), mask);
            for (int r = 0; r < ROWS; ++r) dot(dots[r], weights, r, four);
        }
        const __m512i down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(4), 1);
        for (int r = 0; r < ROWS; ++r) dots[r] = _mm512_srav_epi32(dots[r], down);
    } else {
        // weights + 128 are the unsigned side; what that adds, each row starts without
        const __m512i offset = _mm512_set1_epi8(char(0x80));
        const __m512i fours = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                               21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        for (int r = 0; r < ROWS; ++r) dots[r] = _mm512_set1_epi32(x.offsets[r]);
#pragma GCC unroll 8
        for (int four = 0; four < kGroup / 4; ++four) {
            const __m512i pairs = _mm512_permutexvar_epi16(fours, load_whole(w + 64 * four));
            const __m512i weights = _mm512_xor_si512(pairs, offset);
            for (int r = 0; r < ROWS; ++r) dot(dots[r], weights, r, four);
        }
    }
}

template <Kind KIND, int ROWS>
inline void add_group(const std::uint8_t* w, const Scales& head, const Activations::Group& x, __m512* acc) {
    for (int i = 0; i < group_bytes(KIND); i += 64) fetch(w + kAhead + i);
    const Scales s = read_scales<KIND>(w + code_bytes(KIND), head);
    __m512i dots[ROWS];
    multiply_codes<KIND, ROWS>(w, x, dots);
    for (int r = 0; r < ROWS; ++r) {
        const __m512 both = _mm512_mul_ps(s.scale, _mm512_set1_ps(x.scales[r]));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), both, acc[r]);
        if constexpr (is_int4(KIND)) acc[r] = _mm512_fmadd_ps(s.minimum, _mm512_set1_ps(x.sums[r]), acc[r]);
    }
}

template <Kind KIND, int ROWS>
void quantised_pair(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    __m512 acc[2][ROWS] = {};
    const std::int64_t groups = x.k / kGroup;
    std::int64_t at = 0;  // the same in both panels
    Scales heads[2] = {};
    for (std::int64_t group = 0; group < groups; ++group, at += group_bytes(KIND)) {
        if constexpr (head_bytes(KIND) > 0) {
            if (group % 8 == 0) {
                heads[0] = read_head(a + at);
                heads[1] = read_head(b + at);
                at += head_bytes(KIND);
            }
        }
        add_group<KIND, ROWS>(a + at, heads[0], x.group(first, ROWS, unknown(group)), acc[0]);
        add_group<KIND, ROWS>(b + at, heads[1], x.group(first, ROWS, unknown(group)), acc[1]);
    }
    std::memcpy(out, acc, sizeof acc);
}

void quantised_products(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first,
                        int rows, float* out) {
    with_rows(rows, [&](auto count) {
        constexpr int ROWS = decltype(count)::value;
        switch (kind) {
            case Kind::int8_half: return quantised_pair<Kind::int8_half, ROWS>(a, b, x, first, out);
            case Kind::int8_single: return quantised_pair<Kind::int8_single, ROWS>(a, b, x, first, out);
            case Kind::int4_half: return quantised_pair<Kind::int4_half, ROWS>(a, b, x, first, out);
            case Kind::int4_single: return quantised_pair<Kind::int4_single, ROWS>(a, b, x, first, out);
            case Kind::int4_factors: return quantised_pair<Kind::int4_factors, ROWS>(a, b, x, first, out);
            case Kind::bfloat16: return;
        }
    });
}

// One piece of one panel for all the rows; the next piece is fetched meanwhile.
template <int ROWS>
inline void multiply_piece(const std::uint8_t* w, const float* x, std::int64_t ldx, int count, __m512 (*out)[2]) {
    const __m512i mask = _mm512_set1_epi32(int(0xFFFF0000));
    __m512 acc[ROWS][2];
    for (int r = 0; r < ROWS; ++r) acc[r][0] = out[r][0], acc[r][1] = out[r][1];
    for (int k = 0; k < count; ++k) {
        fetch(w + 64 * (k + kPiece));
        const __m512i pairs = load_whole(w + 64 * k);
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
        for (int r = 0; r < ROWS; ++r) {
            const __m512 a = _mm512_set1_ps(x[r * ldx + k]);
            acc[r][0] = _mm512_fmadd_ps(even, a, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(odd, a, acc[r][1]);
        }
    }
    for (int r = 0; r < ROWS; ++r) out[r][0] = acc[r][0], out[r][1] = acc[r][1];
}

template <int ROWS>
void bfloat16_pair(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, float* out) {
    __m512 acc[2][ROWS][2] = {};  // outputs 0-7 and 16-23, 8-15 and 24-31
    for (std::int64_t k = 0; k < x.k; k += kPiece) {
        const int count = int(x.k - k < kPiece ? x.k - k : kPiece);
        const float* rows = x.x + first * x.ldx + k;
        multiply_piece<ROWS>(a + 64 * k, rows, x.ldx, count, acc[0]);
        multiply_piece<ROWS>(b + 64 * k, rows, x.ldx, count, acc[1]);
    }
    for (auto& panel : acc) {
        for (auto& row : panel) {
            _mm512_storeu_ps(out, _mm512_shuffle_f32x4(row[0], row[1], 0b01000100));
            _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(row[0], row[1], 0b11101110));
            out += 32;
        }
    }
}

void bfloat16_products(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
                       float* out) {
    with_rows(rows, [&](auto count) { bfloat16_pair<decltype(count)::value>(a, b, x, first, out); });
}

}  // namespace

const QuantisedProducts avx512vnni_products = quantised_products;
const Bfloat16Products avx512_bfloat16_products = bfloat16_products;

}  // namespace taslak

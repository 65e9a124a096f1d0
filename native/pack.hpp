// From plain matrices to the layout the kernels read, and back.
//
// Panels of outputs lie one after the other; a panel holds all of k for its outputs, scales beside their codes, so that
// a thread reads one ascending stream: one TLB entry, one hardware prefetcher. Vector lanes are outputs, so a row's
// activations are broadcast and no sum ever crosses lanes. Outputs past n are zeros.
//
//   bfloat16   panels of 32. For each k: 2 × 8 pairs of weights; pair j of half h holds outputs 16h + j and 16h + 8 + j,
//              so that one shift and one mask make two vectors of 8 neighbouring float32 outputs.
//   int8       panels of 16. For each group of 32 k: 16 × (16 outputs × 2 k) codes, then the 16 scales.
//              Pairs along k, because the product is _mm256_madd_epi16 on widened codes.
//   int4       panels of 16. For each group: 8 × (8 outputs × 4 k) bytes, the low half-byte of output j, the high one of
//              output 8 + j, then 16 scales and 16 minima (half, single) or 16 factors a and 16 factors b (a byte each).
//              Fours along k, because the product is _mm256_maddubs_epi16 on codes as they are.
//              factors: before every 8 groups the 16 d and the 16 dmin (float16).
#pragma once

#include <cstdint>
#include <cstring>

#include "linear.hpp"

namespace taslak {

// Outputs of a panel.
static constexpr int width(Kind kind) { return kind == Kind::bfloat16 ? 32 : 16; }
// k must be a multiple of this.
static constexpr int granule(Kind kind) {
    return kind == Kind::bfloat16 ? 1 : kind == Kind::int4_factors ? 8 * kGroup : kGroup;
}
// Bytes of a group's codes, and of everything a group has.
static constexpr int code_bytes(Kind kind) { return is_int4(kind) ? 16 * kGroup / 2 : 16 * kGroup; }
static constexpr int group_bytes(Kind kind) {
    switch (kind) {
        case Kind::int8_half: return code_bytes(kind) + 16 * 2;
        case Kind::int8_single: return code_bytes(kind) + 16 * 4;
        case Kind::int4_half: return code_bytes(kind) + 2 * 16 * 2;
        case Kind::int4_single: return code_bytes(kind) + 2 * 16 * 4;
        case Kind::int4_factors: return code_bytes(kind) + 2 * 16;
        default: return 0;
    }
}
// What stands before every 8 groups.
static constexpr int head_bytes(Kind kind) { return kind == Kind::int4_factors ? 2 * 16 * 2 : 0; }

static inline std::int64_t panels(const Packed& w) { return (w.n + width(w.kind) - 1) / width(w.kind); }
static inline std::int64_t panel_bytes(Kind kind, std::int64_t k) {
    if (kind == Kind::bfloat16) return k * 64;
    const std::int64_t groups = k / kGroup;
    return groups * group_bytes(kind) + groups / 8 * head_bytes(kind);
}
static inline std::int64_t packed_bytes(const Packed& w) { return panels(w) * panel_bytes(w.kind, w.k); }

// ---- one weight at a time: for packing, the portable path and the tests ----

static inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * float(fraction);
    const std::uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static inline float half_at(const std::uint8_t* p) {
    std::uint16_t half;
    std::memcpy(&half, p, 2);
    return half_to_float(half);
}
static inline float single_at(const std::uint8_t* p) {
    float value;
    std::memcpy(&value, p, 4);
    return value;
}

static inline int bfloat16_place(int output) { return output / 16 * 32 + output % 8 * 4 + output / 8 % 2 * 2; }
static inline float bfloat16_at(const std::uint8_t* panel, int output, std::int64_t k) {
    std::uint16_t upper;
    std::memcpy(&upper, panel + 64 * k + bfloat16_place(output), 2);
    const std::uint32_t bits = std::uint32_t(upper) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline std::int64_t group_offset(Kind kind, std::int64_t group) {
    return group * group_bytes(kind) + (group / 8 + 1) * head_bytes(kind);
}
static inline const std::uint8_t* group_at(Kind kind, const std::uint8_t* panel, std::int64_t group) {
    return panel + group_offset(kind, group);
}

// Where code i of a group's output lies.
struct Place {
    int byte, shift;
};
static inline Place place_of(Kind kind, int output, int i) {
    if (is_int4(kind)) return {i / 4 * 32 + output % 8 * 4 + i % 4, output / 8 * 4};
    return {i / 2 * 32 + output * 2 + i % 2, 0};
}
static inline int code_at(Kind kind, const std::uint8_t* group, int output, int i) {
    const Place place = place_of(kind, output, i);
    const std::uint8_t byte = group[place.byte];
    return is_int4(kind) ? byte >> place.shift & 15 : int(std::int8_t(byte));
}

static inline float scale_at(Kind kind, const std::uint8_t* panel, std::int64_t group, int output) {
    const std::uint8_t* p = group_at(kind, panel, group) + code_bytes(kind);
    if (kind == Kind::int8_half || kind == Kind::int4_half) return half_at(p + 2 * output);
    if (kind == Kind::int8_single || kind == Kind::int4_single) return single_at(p + 4 * output);
    const std::uint8_t* head = group_at(kind, panel, group / 8 * 8) - head_bytes(kind);
    return half_at(head + 2 * output) * float(p[output]);
}
static inline float minimum_at(Kind kind, const std::uint8_t* panel, std::int64_t group, int output) {
    const std::uint8_t* p = group_at(kind, panel, group) + code_bytes(kind);
    if (kind == Kind::int4_half) return half_at(p + 32 + 2 * output);
    if (kind == Kind::int4_single) return single_at(p + 64 + 4 * output);
    const std::uint8_t* head = group_at(kind, panel, group / 8 * 8) - head_bytes(kind);
    return -(half_at(head + 32 + 2 * output) * float(p[16 + output]));
}

// ---- whole matrices ----

// All matrices row by row, [n, k] or [n, k / 32]; `out` has packed_bytes. None of these checks anything.
void pack_bfloat16(const std::uint16_t* weights, const Packed& shape, std::uint8_t* out, Pool& pool);
// Scales and minima as the bits of the kind's own type: float16 or float32. `minima` null for int8.
void pack_codes(const std::uint8_t* codes, const void* scales, const void* minima, const Packed& shape,
                std::uint8_t* out, Pool& pool);
// d, dmin: float16 [n, k / 256]; a, b: [n, k / 32].
void pack_factors(const std::uint8_t* codes, const std::uint16_t* d, const std::uint16_t* dmin, const std::uint8_t* a,
                  const std::uint8_t* b, const Packed& shape, std::uint8_t* out, Pool& pool);

// The weights as float32 [n, k]: scale · code + minimum, the sum rounded once.
void unpack(const Packed& w, float* out, Pool& pool);
// The same of single outputs: out is [count, k]. Throws std::out_of_range for an id not in [0, n).
void unpack_rows(const Packed& w, const std::int64_t* ids, std::int64_t count, float* out);

}  // namespace taslak

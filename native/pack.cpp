#include "pack.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "pool.hpp"
#include "vec.hpp"

namespace taslak {
namespace {

// f(panel, its bytes) for every panel, shared out to the threads.
template <class Byte, class F>
void each_panel(const Packed& shape, Byte* data, Pool& pool, const F& f) {
    const std::int64_t bytes = panel_bytes(shape.kind, shape.k);
    pool.parallel_for(panels(shape), [&](std::int64_t panel) { f(panel, data + panel * bytes); });
}

// Of the outputs in a panel, how many exist.
int outputs_in(const Packed& shape, std::int64_t panel) {
    const std::int64_t left = shape.n - panel * width(shape.kind);
    return int(left < width(shape.kind) ? left : width(shape.kind));
}

void put_code(Kind kind, std::uint8_t* group, int output, int i, std::uint8_t code) {
    const Place place = place_of(kind, output, i);
    group[place.byte] = std::uint8_t(group[place.byte] | code << place.shift);
}

template <class Scales>
void pack_groups(const std::uint8_t* codes, const Packed& shape, std::uint8_t* out, Pool& pool, const Scales& scales) {
    const std::int64_t groups = shape.k / kGroup;
    each_panel(shape, out, pool, [&](std::int64_t panel, std::uint8_t* to) {
        std::memset(to, 0, std::size_t(panel_bytes(shape.kind, shape.k)));
        for (int output = 0; output < outputs_in(shape, panel); ++output) {
            const std::int64_t row = panel * width(shape.kind) + output;
            for (std::int64_t group = 0; group < groups; ++group) {
                std::uint8_t* at = to + group_offset(shape.kind, group);
                const std::uint8_t* from = codes + row * shape.k + group * kGroup;
                for (int i = 0; i < kGroup; ++i) put_code(shape.kind, at, output, i, from[i]);
                scales(row * groups + group, at + code_bytes(shape.kind), output);
            }
        }
    });
}

void unpack_row(const Packed& w, const std::uint8_t* panel, int output, float* row) {
    if (!is_quantised(w.kind)) {
        for (std::int64_t k = 0; k < w.k; ++k) row[k] = bfloat16_at(panel, output, k);
        return;
    }
    for (std::int64_t group = 0; group < w.k / kGroup; ++group) {
        const float scale = scale_at(w.kind, panel, group, output);
        const float minimum = is_int4(w.kind) ? minimum_at(w.kind, panel, group, output) : 0.0f;
        for (int i = 0; i < kGroup; ++i) {
            const float code = float(code_at(w.kind, group_at(w.kind, panel, group), output, i));
            row[group * kGroup + i] = std::fma(scale, code, minimum);
        }
    }
}

}  // namespace

void pack_bfloat16(const std::uint16_t* weights, const Packed& shape, std::uint8_t* out, Pool& pool) {
    each_panel(shape, out, pool, [&](std::int64_t panel, std::uint8_t* to) {
        std::memset(to, 0, std::size_t(panel_bytes(shape.kind, shape.k)));
        for (int output = 0; output < outputs_in(shape, panel); ++output) {
            const std::uint16_t* from = weights + (panel * width(shape.kind) + output) * shape.k;
            std::uint8_t* at = to + bfloat16_place(output);
            for (std::int64_t k = 0; k < shape.k; ++k) std::memcpy(at + 64 * k, from + k, 2);
        }
    });
}

void pack_codes(const std::uint8_t* codes, const void* scales, const void* minima, const Packed& shape,
                std::uint8_t* out, Pool& pool) {
    const bool single = shape.kind == Kind::int8_single || shape.kind == Kind::int4_single;
    const std::size_t size = single ? 4 : 2;
    const auto* from = static_cast<const std::uint8_t*>(scales);
    const auto* from_minima = static_cast<const std::uint8_t*>(minima);
    pack_groups(codes, shape, out, pool, [&](std::int64_t index, std::uint8_t* at, int output) {
        const std::size_t i = std::size_t(index) * size, o = std::size_t(output) * size;
        std::memcpy(at + o, from + i, size);
        if (from_minima) std::memcpy(at + 16 * size + o, from_minima + i, size);
    });
}

void pack_factors(const std::uint8_t* codes, const std::uint16_t* d, const std::uint16_t* dmin, const std::uint8_t* a,
                  const std::uint8_t* b, const Packed& shape, std::uint8_t* out, Pool& pool) {
    pack_groups(codes, shape, out, pool, [&](std::int64_t index, std::uint8_t* at, int output) {
        at[output] = a[index];
        at[16 + output] = b[index];
        if (index % 8 == 0) {  // k is a multiple of 256, so rows begin with a head
            std::uint8_t* head = at - code_bytes(shape.kind) - head_bytes(shape.kind);
            std::memcpy(head + 2 * output, d + index / 8, 2);
            std::memcpy(head + 32 + 2 * output, dmin + index / 8, 2);
        }
    });
}

void unpack(const Packed& w, float* out, Pool& pool) {
    each_panel(w, w.data, pool, [&](std::int64_t panel, const std::uint8_t* from) {
        for (int output = 0; output < outputs_in(w, panel); ++output) {
            unpack_row(w, from, output, out + (panel * width(w.kind) + output) * w.k);
        }
    });
}

void unpack_rows(const Packed& w, const std::int64_t* ids, std::int64_t count, float* out) {
    for (std::int64_t i = 0; i < count; ++i) {
        if (ids[i] < 0 || ids[i] >= w.n) {
            throw std::out_of_range("row " + std::to_string(ids[i]) + " of a matrix of " + std::to_string(w.n));
        }
        const std::int64_t panel = ids[i] / width(w.kind);
        unpack_row(w, w.data + panel * panel_bytes(w.kind, w.k), int(ids[i] % width(w.kind)), out + i * w.k);
    }
}

}  // namespace taslak

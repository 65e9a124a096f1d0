// y = x Wᵀ for a handful of rows at the price of one: weights are read once for up to 8 rows.
//
// Every (row, output) is one chain of fused multiply-adds in ascending k (for quantised weights: in ascending groups
// of 32, each an exact integer), whatever the number of rows, the row's place, the other rows, the thread count or the
// alignment. Threads and row blocks split outputs only. Prefill is the same loop with more row blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "activation.hpp"

namespace taslak {

class Pool;

constexpr int kGroup = 32;  // weights that share a scale, and activations that share one
constexpr int kRows = 8;    // rows of a block

// How a packed matrix stores its weights.
//   bfloat16        as they are
//   int8            w = scale · code, codes −128 … 127
//   int4            w = scale · code + minimum, codes 0 … 15
// and the scales (and minima) of each group of 32 along k:
//   half            float16
//   single          float32
//   factors         GGUF's K-quants: two float16 a row and 256 weights, two integers 0 … 255 a group;
//                   scale = d · a, minimum = −(dmin · b), each product rounded once to float32
enum class Kind : std::uint8_t {
    bfloat16,
    int8_half,
    int8_single,
    int4_half,
    int4_single,
    int4_factors,
};

// A packed matrix [n, k]. The bytes belong to someone else (a tensor, a mapped file) and must outlive every use; any
// alignment is right, 64 is fastest. See pack.hpp for the layout.
struct Packed {
    Kind kind;
    std::int64_t n, k;
    const std::uint8_t* data;
};

static constexpr bool is_quantised(Kind kind) { return kind != Kind::bfloat16; }
static constexpr bool is_int4(Kind kind) { return kind >= Kind::int4_half; }

// The rows of one x, quantised at most once for all the weights that read them. Reusable: keep one a workspace.
class Activations {
   public:
    // x stays the caller's and must stay unchanged until the next `set`. ldx: floats from row to row.
    void set(const float* x, int rows, std::int64_t k, std::int64_t ldx);

    // Per row and group of 32: scale = max |x| / 127, codes = x · (127 / max |x|) rounded half to even. A row with an
    // infinity or a NaN has NaN scales there, so that it shows up in the result. k must be a multiple of 32.
    void quantise(Pool& pool);

    int rows = 0;
    std::int64_t k = 0, ldx = 0;
    const float* x = nullptr;
    bool quantised = false;

    // What a group of 32 became in each row of a block, row after row.
    template <class Codes, class Wide, class Offsets, class Floats>
    struct GroupOf {
        Codes* codes;      // [rows, 32]
        Wide* wide;        // [rows, 32], the same numbers
        Offsets* offsets;  // [rows], −128 · Σ codes: for products that add 128 to the weights
        Floats* scales;    // [rows]
        Floats* sums;      // [rows], (Σ codes) · scale: what a minimum is multiplied with

        // The same of the rows from `row` on.
        GroupOf from(std::int64_t row) const {
            return {codes + row * kGroup, wide + row * kGroup, offsets + row, scales + row, sums + row};
        }
    };
    using Group = GroupOf<const std::int8_t, const std::int16_t, const std::int32_t, const float>;
    using OwnGroup = GroupOf<std::int8_t, std::int16_t, std::int32_t, float>;

    // Of the block of `count` rows that begins at row `first`, a multiple of kRows.
    Group group(int first, int count, std::int64_t number) const {
        return Group{codes_.data(), wide_.data(), offsets_.data(), scales_.data(), sums_.data()}.from(
            first * (k / kGroup) + number * count);
    }

   private:
    // Block after block of rows, in each group after group: a kernel finds everything beside what it read before.
    std::vector<std::int8_t> codes_;
    std::vector<std::int16_t> wide_;
    std::vector<std::int32_t> offsets_;
    std::vector<float> scales_, sums_;
};

// One product with the rows: y = x Wᵀ (+ bias) (+ residual). y may be the residual.
struct Product {
    const Packed* weight;
    const float* bias = nullptr;      // [n]
    const float* residual = nullptr;  // [rows, n], ldy floats from row to row
    float* y = nullptr;               // [rows, n]
    std::int64_t ldy = 0;             // floats from row to row
};

// Several products with one x (q, k and v) in one go of the threads. Every weight's k must be the rows'.
void linear(Activations& x, const Product* products, int count, Pool& pool);

inline void linear(Activations& x, const Product& product, Pool& pool) { linear(x, &product, 1, pool); }

// y = activation(x Gᵀ + gate bias) · (x Uᵀ + up bias), nothing in between written to memory. Both weights have one
// shape.
void gated(Activations& x, const Packed& gate, const float* gate_bias, const Packed& up, const float* up_bias,
           float* y, std::int64_t ldy, Pool& pool, Activation activation = Activation::silu);

// y = activation(x Wᵀ + bias)
void activated(Activations& x, const Packed& weight, const float* bias, float* y, std::int64_t ldy,
               Activation activation, Pool& pool);

// The plain form.
void linear(const float* x, int rows, std::int64_t ldx, const Packed& weight, const float* bias, float* y,
            std::int64_t ldy, Pool& pool);

}  // namespace taslak

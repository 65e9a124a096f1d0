// The inner loops of attention, the row operations and the draw, in each form this build has.
//
// Plain pointers and counts only: these functions are compiled for one instruction set each (ops_avx2.cpp,
// ops_scalar.cpp), from the same source.
#pragma once

#include <cstdint>

namespace taslak {

constexpr int kPage = 64;           // positions in a page of the cache, and in a block of attention's reduction
constexpr int kScores = kPage + 8;  // a query's scores of one block; vector stores may run over by one register

// One layer's keys and values: [slots, kv heads, head size], float32 or bfloat16.
struct Cache {
    void* keys;
    void* values;
    bool half;
    int kv_heads, head_size;
};

// Where some of a row's keys lie, by ascending position.
struct Keys {
    const std::int32_t* slots;
    std::int64_t count;
};

// What attention does at once: up to 8 rows of one sequence and the query heads of one K/V head. A row's keys are
// the ones all rows have in common and then its own.
struct AttentionTask {
    int rows, heads, kv_head;  // heads: query heads of all K/V heads
    float scale;
    float cap;            // soft cap of the scores, 0 = none
    std::int64_t window;  // keys a row sees, itself included, 0 = all
    Keys common;
    Keys own[8];
    const float* q;  // [rows, heads, head size]
    float* out;      // the same
    float* scratch;  // scratch_floats() of them
};

// queries: rows · heads / kv heads
constexpr std::int64_t scratch_floats(std::int64_t queries, int head_size) {
    const std::int64_t width = (head_size + 7) / 8 * 8;
    return queries * (2 * width + kScores + 2) + (kPage + 8) * width;
}

// What a draw chooses from.
struct Scores {
    const float* logits;  // a row: z · log2 e = (logits − largest) / 2 · scale
    float largest, scale;
    const double* z;          // or, where there is no row, z as it is
    const std::int64_t* ids;  // of each; null: 0, 1, 2, …
};

struct OpsKernels {
    void (*attend)(const AttentionTask& task, const Cache& cache);
    // K and V of one row, [kv heads · head size], rounded to the cache's dtype.
    void (*write)(const Cache& cache, std::int64_t slot, const float* k, const float* v);
    void (*norm)(const float* x, const float* weight, float eps, int width, float* out);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int width, float* out);
    void (*rotate)(float* x, const float* cos, const float* sin, int size);
    void (*scale_and_cap)(float* x, std::int64_t count, float scale, float cap);
    float (*largest)(const float* x, std::int64_t count);  // a NaN if there is one
    float (*exp_sum)(const float* x, float largest, std::int64_t count);  // Σ exp(x − largest)
    // The first i ≥ first where x[i] is above `bound`; `last` if none.
    std::int64_t (*above)(const float* x, std::int64_t first, std::int64_t last, float bound);
    // The first i ≥ first where one of i … i + 7 can reach `bound`, and a bit for each that can; `last` if none.
    std::int64_t (*find)(const Scores& scores, std::int64_t first, std::int64_t last, std::uint64_t state, float bound,
                         unsigned& which);
};

// For the path in use (cpu.hpp).
const OpsKernels& ops_kernels();

extern const OpsKernels scalar_ops;
#ifdef TASLAK_HAVE_AVX2
extern const OpsKernels avx2_ops;
#endif
#ifdef TASLAK_HAVE_VNNI
extern const OpsKernels avx512_ops;
#endif

}  // namespace taslak

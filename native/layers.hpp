// A pass in one call, described by data: embedding, a range of transformer layers, last norm and head, or a part of
// these.
//
// Knows nothing of drafts. A new family is a new field here and a line in `run`, not a second engine.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "linear.hpp"

namespace taslak {

struct Linear {
    const Packed* weight = nullptr;
    const float* bias = nullptr;
};

// One layer's weights; whoever made them keeps them.
struct Layer {
    const float* input_norm;  // [hidden], or null: q, k and v read the rows as they are
    const float* post_norm;   // [hidden], before the MLP
    Linear q, k, v, o, gate, up, down;
};

// What stands before the layers and behind them. Each may be missing where no pass asks for it.
struct Ends {
    const Packed* embedding = nullptr;  // [vocabulary, hidden]
    Linear fuse;                        // [hidden, 2 hidden]: makes one row of a token's embedding and a hidden state
    const float* norm = nullptr;        // [hidden]; null: the head reads the rows as they are
    const Packed* head = nullptr;       // [vocabulary, hidden]
};

struct Shape {
    int hidden, inner, heads, kv_heads, head_size;
    int rotary;  // dimensions of a head that are rotated, from its start
    float eps;   // of the norms
};

// The rows of a pass and what they read and write.
struct Pass {
    const Plan* plan;
    const std::int64_t* tokens;  // [rows], to be embedded, or null
    const float* x;              // [rows, hidden], or null: hidden states. Both are fused, one is the layers' input
    const float* cos;            // [positions, rotary], the rotation of each position
    const float* sin;
    std::int64_t positions;
    void* keys;        // [layers, slots, kv heads, head size], float32 or bfloat16
    void* values;
    bool half;
    std::int64_t slots;
    // Where rows go, [rows, hidden], or null: the layers' input, each one's output, the last norm's. May be shorter.
    std::vector<float*> captures;
    const float* beside = nullptr;  // [rows, columns of q, k and v past hidden]: what they read before the row itself
    std::vector<int> wanted;        // rows that get logits
    float* logits = nullptr;        // [wanted, rows of the head]
};

// Not to be run by two threads at once: they would share its workspace.
class Layers {
   public:
    // q, k and v may be wider than hidden, all equally: see Pass::beside. Throws std::invalid_argument where a weight
    // doesn't fit the shape.
    Layers(Shape shape, std::vector<Layer> layers, Ends ends = {});

    // Layers [first, last). The rows' K/V is in the cache before any row reads it. Throws std::invalid_argument where
    // the pass asks for what isn't there, std::out_of_range for a token past the embedding's end.
    void run(int first, int last, const Pass& pass, Pool& pool);

   private:
    void start(const Pass& pass, Pool& pool);
    void finish(const Pass& pass, Pool& pool);
    // What q, k and v read: the rows, normed where the layer norms them, behind what stands beside them.
    const float* input(const Layer& layer, const Pass& pass, Pool& pool);
    void attention(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool);
    void mlp(const Layer& layer, const Pass& pass, Pool& pool);

    Shape shape_;
    int beside_ = 0;
    std::vector<Layer> layers_;
    Ends ends_;
    Activations activations_;
    std::vector<float> cos_, sin_, x_, normed_, wide_, q_, k_, v_, mixed_, inner_;
};

}  // namespace taslak

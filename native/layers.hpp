// A range of transformer layers in one call, described by data.
//
// Knows nothing of embeddings, logits or drafts: hidden states in, hidden states out. A new family is a new field
// here and a line in `run`, not a second engine.
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

struct Shape {
    int hidden, inner, heads, kv_heads, head_size;
    int rotary;  // dimensions of a head that are rotated, from its start
    float eps;   // of the norms
};

// The rows of a pass and what they read and write.
struct Pass {
    const Plan* plan;
    float* x;          // [rows, hidden], replaced by the last layer's output
    const float* cos;  // [rows, rotary]
    const float* sin;
    void* keys;        // [layers, slots, kv heads, head size], float32 or bfloat16
    void* values;
    bool half;
    std::int64_t slots;
    std::vector<float*> captures;  // by layer: where its output goes too, [rows, hidden], or null; may be shorter
    const float* beside = nullptr;  // [rows, columns of q, k and v past hidden]: what they read before the row itself
};

// Not to be run by two threads at once: they would share its workspace.
class Layers {
   public:
    // q, k and v may be wider than hidden, all equally: see Pass::beside. Throws std::invalid_argument where a weight
    // doesn't fit the shape.
    Layers(Shape shape, std::vector<Layer> layers);

    // Layers [first, last). The rows' K/V is in the cache before any row reads it.
    void run(int first, int last, const Pass& pass, Pool& pool);

   private:
    // What q, k and v read: the rows, normed where the layer norms them, behind what stands beside them.
    const float* input(const Layer& layer, const Pass& pass, Pool& pool);
    void attention(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool);
    void mlp(const Layer& layer, const Pass& pass, Pool& pool);

    Shape shape_;
    int beside_ = 0;
    std::vector<Layer> layers_;
    Activations activations_;
    std::vector<float> normed_, wide_, q_, k_, v_, mixed_, inner_;
};

}  // namespace taslak

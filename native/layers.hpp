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

// RMSNorm, or with a bias LayerNorm. Without a weight rows stay as they are.
struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;
};

// One layer's weights; whoever made them keeps them.
struct Layer {
    Norm input, post;               // [hidden], of what attention reads, and of what the MLP reads
    Norm q_norm, k_norm;            // [head size], or of q's and k's whole width
    Norm behind_attention, behind_mlp;  // [hidden], of what is added to the rows
    Linear q, k, v, o, gate, up, down;  // without a gate the MLP's rows are activated
    int window = 0;                 // positions a row sees, itself included; 0 = all
    int rotation = 0;               // which of the pass's; -1: q and k stay as they are
};

// What stands before the layers and behind them. Each may be missing where no pass asks for it.
struct Ends {
    const Packed* embedding = nullptr;  // [vocabulary, hidden]
    Linear fuse;                        // [hidden, 2 hidden]: makes one row of a token's embedding and a hidden state
    Norm norm;                          // [hidden]; without it the head reads the rows as they are
    const Packed* head = nullptr;       // [vocabulary, hidden]
    const float* positions = nullptr;   // [position_count, hidden], added to embeddings, or null
    std::int64_t position_count = 0;
    float embedding_scale = 1.0f;       // of embeddings, before positions are added
    float logit_scale = 1.0f, logit_cap = 0.0f;  // logits become cap · tanh(scale · logit / cap); 0: no cap
};

struct Shape {
    int hidden, inner, heads, kv_heads, head_size;
    int rotary;  // dimensions of a head that are rotated, from its start
    float eps;   // of the norms
    Activation activation = Activation::silu;
    bool parallel = false;         // attention and MLP read the same rows
    bool whole_qk_norm = false;    // q and k are normed over their whole width, not head by head
    float attention_scale = 1.0f;  // of scores
    float attention_cap = 0.0f;    // see Scoring
    float residual_scale = 1.0f;   // of what is added to the rows
};

// Cosines and sines of each position, [positions, rotary].
struct Rotation {
    const float* cos;
    const float* sin;
};

// The rows of a pass and what they read and write.
struct Pass {
    const Plan* plan;
    const std::int64_t* tokens;  // [rows], to be embedded, or null
    const float* x;              // [rows, hidden], or null: hidden states. Both are fused, one is the layers' input
    std::vector<Rotation> rotations;
    std::int64_t positions;      // of each rotation
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
    // x normed into `to`; x itself where nothing norms it.
    const float* normed(const Norm& norm, const float* x, int rows, int width, float* to, Pool& pool);
    // What q, k and v read: the rows, normed where the layer norms them, behind what stands beside them.
    const float* input(const Layer& layer, const Pass& pass, Pool& pool);
    void run(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool);
    // From the rows to what o reads.
    void attention(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool);
    void mlp(const Layer& layer, const float* input, const Pass& pass, Pool& pool);
    // The product with the activations at hand, added to the rows.
    void add(const Linear& linear, const Norm& norm, int rows, Pool& pool);

    Shape shape_;
    int beside_ = 0;
    std::vector<Layer> layers_;
    Ends ends_;
    Activations activations_;
    std::vector<std::vector<float>> cos_, sin_;  // of each rotation, [rows, rotary]
    std::vector<float> x_, normed_, added_, wide_, q_, k_, v_, mixed_, inner_;
};

}  // namespace taslak

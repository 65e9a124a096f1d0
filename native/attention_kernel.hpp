// Attention of a few rows over one K/V head; see attention.hpp for what is promised.
#pragma once

#include <cmath>
#include <limits>

#include "ops_kernels.hpp"
#include "rows_kernel.hpp"
#include "vec.hpp"

namespace taslak {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

constexpr int rounded_up(int n) { return (n + 7) / 8 * 8; }

// Some keys or values of one K/V head, float32, each padded with zeros to `width`.
template <class V, class T>
void gather(const T* tensor, const Cache& cache, int kv_head, const std::int32_t* slots, int count, int width,
            float* out) {
    const int size = cache.head_size;
    for (int i = 0; i < count; ++i, out += width) {
        const T* from = tensor + (std::int64_t(slots[i]) * cache.kv_heads + kv_head) * size;
        int c = 0;
        for (; c + 8 <= size; c += 8) V::load(from + c).store(out + c);
        for (; c < size; ++c) out[c] = to_float(from[c]);
        for (; c < width; ++c) out[c] = 0.0f;
    }
}

template <class V>
void gather(const Cache& cache, bool values, int kv_head, const std::int32_t* slots, int count, int width,
            float* out) {
    const void* tensor = values ? cache.values : cache.keys;
    if (cache.half) {
        gather<V>(static_cast<const bfloat16*>(tensor), cache, kv_head, slots, count, width, out);
    } else {
        gather<V>(static_cast<const float*>(tensor), cache, kv_head, slots, count, width, out);
    }
}

// Scores of Q queries and K keys, Q · K = 8. Each is one chain of fused multiply-adds a lane, then one `sum`.
template <class V, int Q, int K>
void score_tile(const float* q, const float* k, int width, float scale, float* out) {
    V acc[8];
    for (V& a : acc) a = V::set(0.0f);
    for (int c = 0; c < width; c += 8) {
        V key[K];
        for (int j = 0; j < K; ++j) key[j] = V::load(k + j * width + c);
        for (int i = 0; i < Q; ++i) {
            const V query = V::load(q + i * width + c);
            for (int j = 0; j < K; ++j) acc[i * K + j] = fma(query, key[j], acc[i * K + j]);
        }
    }
    float scores[8];
    (sums(acc) * V::set(scale)).store(scores);
    for (int i = 0; i < Q; ++i) for (int j = 0; j < K; ++j) out[i * kScores + j] = scores[i * K + j];
}

// out[i][j] = scale · q[i]·k[j]; may write up to seven scores past `keys` and read as many rows of k.
template <class V>
void score(const float* q, int queries, const float* k, int keys, int width, float scale, float* out) {
    int i = 0;
    for (; i + 2 <= queries; i += 2) {
        for (int j = 0; j < keys; j += 4) {
            score_tile<V, 2, 4>(q + i * width, k + j * width, width, scale, out + i * kScores + j);
        }
    }
    for (; i < queries; ++i) {
        for (int j = 0; j < keys; j += 8) {
            score_tile<V, 1, 8>(q + i * width, k + j * width, width, scale, out + i * kScores + j);
        }
    }
}

// out[i] += Σ_j weights[i][j] · v[j], j ascending, for Q queries and D registers of the head.
template <class V, int Q, int D>
void mix_tile(const float* weights, const float* v, int keys, int width, float* out) {
    constexpr int lanes = V::kLanes;
    V acc[Q][D];
    for (int i = 0; i < Q; ++i) {
        for (int c = 0; c < D; ++c) acc[i][c] = V::load(out + i * width + lanes * c);
    }
    for (int j = 0; j < keys; ++j) {
        V value[D];
        for (int c = 0; c < D; ++c) value[c] = V::load(v + j * width + lanes * c);
        for (int i = 0; i < Q; ++i) {
            const V weight = V::set(weights[i * kScores + j]);
            for (int c = 0; c < D; ++c) acc[i][c] = fma(weight, value[c], acc[i][c]);
        }
    }
    for (int i = 0; i < Q; ++i) {
        for (int c = 0; c < D; ++c) acc[i][c].store(out + i * width + lanes * c);
    }
}

// As wide as registers allow: eight sums in flight hide the latency of a fused multiply-add. Rest: eight lanes, for
// what a wider V leaves.
template <class V, class Rest, int Q, int D>
void mix_rows(const float* weights, const float* v, int keys, int width, float* out) {
    int c = 0;
    for (; c + V::kLanes * D <= width; c += V::kLanes * D) mix_tile<V, Q, D>(weights, v + c, keys, width, out + c);
    for (; c + V::kLanes <= width; c += V::kLanes) mix_tile<V, Q, 1>(weights, v + c, keys, width, out + c);
    for (; c < width; c += 8) mix_tile<Rest, Q, 1>(weights, v + c, keys, width, out + c);
}

// kernel(i) for every `count` queries that are left, from i on.
template <class Kernel>
void in_steps(int& i, int queries, int count, Kernel kernel) {
    for (; i + count <= queries; i += count) kernel(i);
}

template <class V>
void mix(const float* weights, int queries, const float* v, int keys, int width, float* out) {
    int i = 0;
    const auto with = [&](auto rows) {
        return [=](int at) { rows(weights + at * kScores, v, keys, width, out + at * width); };
    };
    in_steps(i, queries, 4, with(mix_rows<V, V, 4, 2>));
    in_steps(i, queries, 2, with(mix_rows<V, V, 2, 4>));
    in_steps(i, queries, 1, with(mix_rows<V, V, 1, 8>));
}

// Scores [begin, end), whole registers, become exp(score − largest). -> their sums, lane by lane.
template <class V>
V weigh(float* scores, int begin, int end, float largest) {
    V weights = V::set(0.0f);
    for (int j = begin; j < end; j += 8) {
        const V weight = steady_exp(V::load(scores + j) - V::set(largest));
        weight.store(scores + j);
        weights = weights + weight;
    }
    return weights;
}

// What most of the time goes into, for which a path may have something better that gives the same bits.
template <class V>
struct Products {
    static constexpr auto score = taslak::score<V>;
    static constexpr auto weigh = taslak::weigh<V>;
    static constexpr auto mix = taslak::mix<V>;
};

// Online softmax (Milakov and Gimelshein 2018) of one query, a block at a time: turns the block's scores into weights
// relative to the largest so far and rescales what `out` and `total` hold already. Keys before `first` don't count.
template <class V, class P>
void softmax_block(float* scores, int first, int keys, float cap, float& largest, float& total, float* out, int width) {
    const int begin = first / 8 * 8;
    if (cap != 0.0f) scale_and_cap<V>(scores + first, keys - first, 1.0f, cap);
    for (int j = begin; j < first; ++j) scores[j] = kLowest;
    for (int j = keys; j < rounded_up(keys); ++j) scores[j] = kLowest;
    V high = V::set(largest);
    for (int j = begin; j < keys; j += 8) high = max(V::load(scores + j), high);
    float lanes[8];
    high.store(lanes);
    const float before = largest;
    for (float lane : lanes) largest = lane > largest ? lane : largest;
    const V weights = P::weigh(scores, begin, rounded_up(keys), largest);
    if (largest == before) {  // then the factor is exactly 1
        total += sum(weights);
        return;
    }
    const V factor = steady_exp(V::set(before - largest));
    factor.store(lanes);
    total = total * lanes[0] + sum(weights);
    for (int c = 0; c < width; c += 8) (V::load(out + c) * factor).store(out + c);
}

// Key blocks outermost, so K/V are read once for all rows and heads.
template <class V, class P = Products<V>>
void attend(const AttentionTask& task, const Cache& cache) {
    const int size = cache.head_size, width = rounded_up(size);
    const int each = task.heads / cache.kv_heads, queries = task.rows * each;  // query r · each + h
    float* q = task.scratch;                       // [queries, width], as is `mixed`
    float* mixed = q + queries * width;
    float* block = mixed + queries * width;        // [64 + 8, width]
    float* scores = block + (kPage + 8) * width;   // [queries, 72]
    float* largest = scores + queries * kScores;   // [queries], as is `totals`
    float* totals = largest + queries;
    const auto place = [&](int row, int head) { return (row * task.heads + task.kv_head * each + head) * size; };

    std::int64_t longest = 0, seen_from[8], earliest = task.common.count + task.own[0].count;
    for (int r = 0; r < task.rows; ++r) {
        const std::int64_t count = task.common.count + task.own[r].count;
        seen_from[r] = task.window && count > task.window ? count - task.window : 0;
        if (seen_from[r] < earliest) earliest = seen_from[r];
        if (task.own[r].count > longest) longest = task.own[r].count;
        for (int h = 0; h < each; ++h) {
            float* to = q + (r * each + h) * width;
            const float* from = task.q + place(r, h);
            for (int c = 0; c < width; ++c) to[c] = c < size ? from[c] : 0.0f;
        }
    }
    for (int i = 0; i < queries * width; ++i) mixed[i] = 0.0f;
    for (int i = 0; i < queries; ++i) largest[i] = kLowest, totals[i] = 0.0f;

    for (std::int64_t start = earliest / kPage * kPage; start < task.common.count + longest; start += kPage) {
        // keys from `start` to `end`, within this block
        const auto within = [start](std::int64_t end) {
            return end <= start ? 0 : end - start < kPage ? int(end - start) : kPage;
        };
        const int common = within(task.common.count);
        // of each row, the first key in the block; of all rows, the first and the last of these within the common ones
        int from[8], first_from = common, last_from = 0;
        for (int r = 0; r < task.rows; ++r) {
            from[r] = within(seen_from[r]);
            if (from[r] < first_from) first_from = from[r];
            if (from[r] > last_from) last_from = from[r];
        }
        if (last_from > common) last_from = common;
        // the keys all rows have in common, those first that only some rows see; then each row's own: positions
        // ascend through all
        const auto both = [&](bool values, auto kernel) {
            gather<V>(cache, values, task.kv_head, task.common.slots + start + first_from, common - first_from, width,
                      block);
            for (int r = 0; r < task.rows; ++r) {
                if (from[r] < last_from) {
                    kernel(r * each, each, from[r], last_from - from[r], block + (from[r] - first_from) * width);
                }
            }
            kernel(0, queries, last_from, common - last_from, block + (last_from - first_from) * width);
            for (int r = 0; r < task.rows; ++r) {
                const int begin = from[r] > common ? from[r] : common;
                const int own = within(task.common.count + task.own[r].count) - begin;
                if (own <= 0) continue;
                const std::int32_t* slots = task.own[r].slots + (start + begin - task.common.count);
                gather<V>(cache, values, task.kv_head, slots, own, width, block);
                kernel(r * each, each, begin, own, block);
            }
        };
        both(false, [&](int first, int count, int at, int keys, const float* k) {
            P::score(q + first * width, count, k, keys, width, task.scale, scores + first * kScores + at);
        });
        for (int i = 0; i < queries; ++i) {
            const int keys = within(task.common.count + task.own[i / each].count), first = from[i / each];
            if (keys <= first) continue;
            softmax_block<V, P>(scores + i * kScores, first, keys, task.cap, largest[i], totals[i], mixed + i * width, width);
        }
        both(true, [&](int first, int count, int at, int keys, const float* v) {
            P::mix(scores + first * kScores + at, count, v, keys, width, mixed + first * width);
        });
    }

    for (int i = 0; i < queries; ++i) {
        float* to = task.out + place(i / each, i % each);
        for (int c = 0; c < size; ++c) to[c] = mixed[i * width + c] / totals[i];
    }
}

template <class V, class T>
void write_row(T* tensor, std::int64_t slot, int size, const float* from) {
    T* to = tensor + slot * size;
    int c = 0;
    for (; c + 8 <= size; c += 8) V::load(from + c).store(to + c);
    if (c < size) store_part(load_part<V>(from + c, size - c), to + c, size - c);
}

template <class V>
void write(const Cache& cache, std::int64_t slot, const float* k, const float* v) {
    const int size = cache.kv_heads * cache.head_size;
    if (cache.half) {
        write_row<V>(static_cast<bfloat16*>(cache.keys), slot, size, k);
        write_row<V>(static_cast<bfloat16*>(cache.values), slot, size, v);
    } else {
        write_row<V>(static_cast<float*>(cache.keys), slot, size, k);
        write_row<V>(static_cast<float*>(cache.values), slot, size, v);
    }
}

}  // namespace
}  // namespace taslak

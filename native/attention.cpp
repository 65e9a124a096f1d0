#include "attention.hpp"

#include <limits>
#include <stdexcept>

#include "pool.hpp"
#include "vec.hpp"

namespace taslak {

namespace {

constexpr int kRows = 8;               // rows that share one reading of K/V
constexpr int kScores = kPage + 8;     // a query's scores of one block; vector stores may run over by one register

int round_up(int n) { return (n + 7) / 8 * 8; }

}  // namespace

Plan::Plan(std::vector<Share> shares) : shares_(std::move(shares)) {
    for (int s = 0; s < int(shares_.size()); ++s) {
        const Share& share = shares_[s];
        const int first = rows(), nodes = int(share.parents.size());
        if (share.length < 0 || share.length + nodes > std::int64_t(share.pages.size()) * kPage) {
            throw std::invalid_argument("attention plan: the pages don't hold the sequence's positions");
        }
        for (std::int64_t page : share.pages) {
            if (page < 0) throw std::invalid_argument("attention plan: a page number is negative");
            last_slot_ = std::max(last_slot_, page * kPage + kPage - 1);
        }
        for (int n = 0; n < nodes; ++n) {
            if (share.parents[n] < -1 || share.parents[n] >= n) {
                throw std::invalid_argument("attention plan: a node's parent doesn't come before it");
            }
        }
        for (std::int32_t node : share.nodes) {
            if (node < 0 || node >= nodes) throw std::invalid_argument("attention plan: a row's node is unknown");
            const std::int32_t parent = share.parents[node];
            if (rows() > first && !paths_.empty() && paths_.back() == parent) {
                // the child of the row before extends its path: a chain of n rows keeps n numbers, not n²
                const Row before = rows_.back();
                paths_.push_back(node);
                rows_.push_back({s, before.depth + 1, before.path});
                continue;
            }
            const std::size_t start = paths_.size();
            for (std::int32_t at = node; at >= 0; at = share.parents[at]) paths_.push_back(at);
            std::reverse(paths_.begin() + start, paths_.end());
            rows_.push_back({s, int(paths_.size() - start), start});
        }
        for (int row = first; row < rows(); row += kRows) group(row, std::min(row + kRows, rows()));
    }
}

void Plan::group(int first, int last) {
    const Row& a = rows_[first];
    int common = a.depth;
    for (int row = first + 1; row < last; ++row) {
        const Row& b = rows_[row];
        int same = 0;
        const int most = std::min(common, b.depth);
        while (same < most && paths_[a.path + same] == paths_[b.path + same]) ++same;
        common = same;
    }
    groups_.push_back({first, last - first, shares_[a.share].length + common});
}

std::int64_t Plan::slot(int row, std::int64_t position) const {
    const Row& r = rows_[row];
    const Share& share = shares_[r.share];
    if (position >= share.length) position = share.length + paths_[r.path + std::size_t(position - share.length)];
    return share.pages[std::size_t(position / kPage)] * kPage + position % kPage;
}

void Cache::write(std::int64_t slot, const float* k, const float* v) const {
    const std::int64_t size = std::int64_t(kv_heads) * head_size;
    const auto put = [&](void* tensor, const float* from) {
        if (half) {
            std::transform(from, from + size, static_cast<bfloat16*>(tensor) + slot * size, to_bfloat16);
        } else {
            std::copy(from, from + size, static_cast<float*>(tensor) + slot * size);
        }
    };
    put(keys, k);
    put(values, v);
}

namespace {

// Some keys or values of one K/V head, float32, each padded with zeros to `width`.
template <class V, class T>
void gather(const T* tensor, const Cache& cache, int kv_head, const std::int64_t* slots, int count, int width,
            float* out) {
    const int size = cache.head_size;
    for (int i = 0; i < count; ++i, out += width) {
        const T* from = tensor + (slots[i] * cache.kv_heads + kv_head) * size;
        int c = 0;
        for (; c + 8 <= size; c += 8) V::load(from + c).store(out + c);
        for (; c < size; ++c) out[c] = to_float(from[c]);
        for (; c < width; ++c) out[c] = 0.0f;
    }
}

template <class V>
void gather(const Cache& cache, bool values, int kv_head, const std::int64_t* slots, int count, int width,
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
    for (int i = 0; i < Q; ++i) std::copy(scores + i * K, scores + i * K + K, out + i * kScores);
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
    V acc[Q][D];
    for (int i = 0; i < Q; ++i) {
        for (int c = 0; c < D; ++c) acc[i][c] = V::load(out + i * width + 8 * c);
    }
    for (int j = 0; j < keys; ++j) {
        V value[D];
        for (int c = 0; c < D; ++c) value[c] = V::load(v + j * width + 8 * c);
        for (int i = 0; i < Q; ++i) {
            const V weight = V::set(weights[i * kScores + j]);
            for (int c = 0; c < D; ++c) acc[i][c] = fma(weight, value[c], acc[i][c]);
        }
    }
    for (int i = 0; i < Q; ++i) {
        for (int c = 0; c < D; ++c) acc[i][c].store(out + i * width + 8 * c);
    }
}

// As wide as registers allow: eight sums in flight hide the latency of a fused multiply-add.
template <class V, int Q, int D>
void mix_rows(const float* weights, const float* v, int keys, int width, float* out) {
    int c = 0;
    for (; c + 8 * D <= width; c += 8 * D) mix_tile<V, Q, D>(weights, v + c, keys, width, out + c);
    for (; c < width; c += 8) mix_tile<V, Q, 1>(weights, v + c, keys, width, out + c);
}

template <class V>
void mix(const float* weights, int queries, const float* v, int keys, int width, float* out) {
    int i = 0;
    const auto step = [&](auto kernel, int count) {
        for (; i + count <= queries; i += count) kernel(weights + i * kScores, v, keys, width, out + i * width);
    };
    step(mix_rows<V, 4, 2>, 4);
    step(mix_rows<V, 2, 4>, 2);
    step(mix_rows<V, 1, 8>, 1);
}

// Online softmax (Milakov and Gimelshein 2018) of one query, a block at a time.
struct Softmax {
    float largest = -std::numeric_limits<float>::infinity();
    float total = 0.0f;

    // Turn a block's scores into weights relative to the largest so far; rescales what `out` holds already.
    template <class V>
    void block(float* scores, int keys, float* out, int width) {
        const float lowest = -std::numeric_limits<float>::infinity();
        for (int j = keys; j < round_up(keys); ++j) scores[j] = lowest;
        V high = V::set(largest);
        for (int j = 0; j < keys; j += 8) high = max(V::load(scores + j), high);
        float lanes[8];
        high.store(lanes);
        const float before = largest;
        largest = *std::max_element(lanes, lanes + 8);
        V sums = V::set(0.0f);
        for (int j = 0; j < keys; j += 8) {
            const V weight = steady_exp(V::load(scores + j) - V::set(largest));
            weight.store(scores + j);
            sums = sums + weight;
        }
        if (largest == before) {  // then the factor is exactly 1
            total += sum(sums);
            return;
        }
        steady_exp(V::set(before - largest)).store(lanes);
        total = std::fma(total, lanes[0], sum(sums));
        for (int c = 0; c < width; c += 8) (V::load(out + c) * V::set(lanes[0])).store(out + c);
    }
};

// A thread's working memory; grows to the largest need and stays.
struct Scratch {
    std::vector<float> q, block, out, scores;
    std::vector<Softmax> softmax;
};

// The rows of a group and the heads of one K/V head: key blocks outermost, so K/V are read once for all of them.
template <class V>
void attend_group(const Plan& plan, const Plan::Group& group, int kv_head, const float* q, const Cache& cache,
                  int heads, float scale, float* out) {
    static thread_local Scratch scratch;
    const int size = cache.head_size, width = round_up(size);
    const int each = heads / cache.kv_heads, queries = group.rows * each;  // query r · each + h
    scratch.q.assign(std::size_t(queries) * width, 0.0f);
    scratch.out.assign(std::size_t(queries) * width, 0.0f);
    scratch.block.resize(std::size_t(kPage + 8) * width);
    scratch.scores.resize(std::size_t(queries) * kScores);
    scratch.softmax.assign(queries, Softmax());
    float *own_q = scratch.q.data(), *mixed = scratch.out.data();
    float *block = scratch.block.data(), *scores = scratch.scores.data();

    std::int64_t longest = 0;
    for (int r = 0; r < group.rows; ++r) {
        const float* from = q + (std::int64_t(group.first + r) * heads + kv_head * each) * size;
        for (int h = 0; h < each; ++h) std::copy_n(from + h * size, size, own_q + (r * each + h) * width);
        longest = std::max(longest, plan.end(group.first + r));
    }

    std::int64_t slots[kPage];
    for (std::int64_t start = 0; start < longest; start += kPage) {
        const auto within = [&](std::int64_t end) {
            return int(std::clamp<std::int64_t>(end - start, 0, kPage));
        };
        const int common = within(group.common);
        // the keys all rows share, then each row's own ancestors: positions ascend through both
        const auto both = [&](bool values, auto kernel) {
            for (int j = 0; j < common; ++j) slots[j] = plan.slot(group.first, start + j);
            gather<V>(cache, values, kv_head, slots, common, width, block);
            kernel(0, queries, 0, common);
            for (int r = 0; r < group.rows; ++r) {
                const int row = group.first + r, own = within(plan.end(row)) - common;
                if (own <= 0) continue;
                for (int j = 0; j < own; ++j) slots[j] = plan.slot(row, start + common + j);
                gather<V>(cache, values, kv_head, slots, own, width, block);
                kernel(r * each, each, common, own);
            }
        };
        both(false, [&](int first, int count, int at, int keys) {
            score<V>(own_q + first * width, count, block, keys, width, scale, scores + first * kScores + at);
        });
        for (int i = 0; i < queries; ++i) {
            const int keys = within(plan.end(group.first + i / each));
            if (keys) scratch.softmax[i].block<V>(scores + i * kScores, keys, mixed + i * width, width);
        }
        both(true, [&](int first, int count, int at, int keys) {
            mix<V>(scores + first * kScores + at, count, block, keys, width, mixed + first * width);
        });
    }

    for (int i = 0; i < queries; ++i) {
        float* to = out + (std::int64_t(group.first + i / each) * heads + kv_head * each + i % each) * size;
        for (int c = 0; c < size; ++c) to[c] = mixed[i * width + c] / scratch.softmax[i].total;
    }
}

}  // namespace

void attend(const Plan& plan, const float* q, const Cache& cache, int heads, float scale, float* out, Pool& pool,
            bool scalar) {
    const int groups = int(plan.groups().size());
    // a unit is one output: threads never share a reduction
    pool.run(groups * cache.kv_heads, [&](int unit) {
        const Plan::Group& group = plan.groups()[unit / cache.kv_heads];
        const int kv_head = unit % cache.kv_heads;
#ifdef TASLAK_AVX2
        if (!scalar) return attend_group<Avx8>(plan, group, kv_head, q, cache, heads, scale, out);
#endif
        attend_group<Scalar8>(plan, group, kv_head, q, cache, heads, scale, out);
    });
}

}  // namespace taslak

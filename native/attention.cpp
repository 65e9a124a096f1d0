#include "attention.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace taslak {

namespace {

constexpr int kRows = 8;  // of a group: enough to hide the reading of K/V, few enough to leave work for every thread
constexpr int kMany = 4;  // tasks a thread after which it no longer matters that the last round is not full

void check(bool good, const char* what) {
    if (!good) throw std::invalid_argument(std::string("attention plan: ") + what);
}

}  // namespace

Plan::Plan(const std::vector<Share>& shares) {
    for (const Share& share : shares) {
        const int nodes = int(share.parents.size());
        check(share.base >= 0 && share.length >= 0 && share.length + nodes <= std::int64_t(share.pages.size()) * kPage,
              "the pages don't hold the sequence's positions");
        for (std::int32_t page : share.pages) {
            check(page >= 0, "a page number is negative");
            slots_end_ = std::max<std::int64_t>(slots_end_, std::int64_t(page + 1) * kPage);
        }
        for (int n = 0; n < nodes; ++n) {
            check(share.parents[n] >= -1 && share.parents[n] < n, "a node's parent doesn't come before it");
        }
        for (std::int32_t node : share.nodes) check(node >= 0 && node < nodes, "a row's node is unknown");
        const int count = int(share.nodes.size());
        for (int row = 0; row < count; row += kRows) add(share, share.nodes.data() + row, std::min(kRows, count - row));
    }
}

void Plan::add(const Share& share, const std::int32_t* nodes, int count) {
    std::vector<std::int32_t> paths[kRows];  // of each row, its ancestors in order
    for (int r = 0; r < count; ++r) {
        for (std::int32_t at = nodes[r]; at >= 0; at = share.parents[at]) paths[r].push_back(at);
        std::reverse(paths[r].begin(), paths[r].end());
    }
    std::size_t same = paths[0].size();  // ancestors all rows have in common
    for (int r = 1; r < count; ++r) {
        const auto end = paths[0].begin() + std::min(same, paths[r].size());
        same = std::size_t(std::mismatch(paths[0].begin(), end, paths[r].begin()).first - paths[0].begin());
    }
    const auto slot = [&](std::int64_t position) {
        return share.pages[std::size_t(position / kPage)] * kPage + std::int32_t(position % kPage);
    };
    const auto put = [&](std::int64_t position) { slots_.push_back(slot(position)); };
    Group group{rows_, count, slots_.size(), std::size_t(share.length) + same, {}};
    for (std::int64_t position = 0; position < share.length; ++position) put(position);
    for (std::size_t i = 0; i < same; ++i) put(share.length + paths[0][i]);
    for (int r = 0; r < count; ++r) {
        group.own[r] = {slots_.size(), paths[r].size() - same};
        for (std::size_t i = same; i < paths[r].size(); ++i) put(share.length + paths[r][i]);
        own_slots_.push_back(slot(share.length + nodes[r]));
        positions_.push_back(share.base + share.length + std::int64_t(paths[r].size()) - 1);
        positions_end_ = std::max(positions_end_, positions_.back() + 1);
    }
    groups_.push_back(group);
    rows_ += count;
    most_rows_ = std::max(most_rows_, count);
}

AttentionTask Plan::task(const Group& group, int first, int last, int kv_head, int head_size, const Scoring& s,
                         const float* q, float* out) const {
    const std::int64_t start = std::int64_t(group.first + first) * s.heads * head_size;
    AttentionTask task{last - first, s.heads, kv_head, s.scale, s.cap, s.window, {}, {}, q + start, out + start, nullptr};
    task.common = {slots_.data() + group.common, std::int64_t(group.commons)};
    for (int r = first; r < last; ++r) {
        task.own[r - first] = {slots_.data() + group.own[r].start, std::int64_t(group.own[r].count)};
    }
    return task;
}

void attend(const Plan& plan, const float* q, const Cache& cache, const Scoring& scoring, float* out, Pool& pool) {
    const OpsKernels& use = ops_kernels();
    const std::int64_t queries = std::int64_t(plan.most_rows()) * (scoring.heads / cache.kv_heads);
    const std::int64_t floats = scratch_floats(queries, cache.head_size);
    // Three K/V heads for two threads would leave one of them idle for a third of the time: then the rows of the one
    // left over are halved, although both halves read its keys.
    const std::int64_t all = std::int64_t(plan.groups().size()) * cache.kv_heads;
    const bool uneven = plan.most_rows() > 1 && all < kMany * pool.threads();
    const std::int64_t halved = uneven ? all % pool.threads() : 0, whole = all - halved;
    pool.parallel_for(whole + 2 * halved, [&](std::int64_t task_number) {
        static thread_local std::vector<float> scratch;
        if (std::int64_t(scratch.size()) < floats) scratch.resize(std::size_t(floats));
        const std::int64_t beyond = task_number - whole, unit = beyond < 0 ? task_number : whole + beyond / 2;
        const Plan::Group& group = plan.groups()[std::size_t(unit / cache.kv_heads)];
        const int middle = group.rows / 2, second = int(beyond % 2);
        const int first = beyond >= 0 && second ? middle : 0, last = beyond >= 0 && !second ? middle : group.rows;
        if (first == last) return;
        const int kv_head = int(unit % cache.kv_heads);
        AttentionTask task = plan.task(group, first, last, kv_head, cache.head_size, scoring, q, out);
        task.scratch = scratch.data();
        use.attend(task, cache);
    });
}

}  // namespace taslak

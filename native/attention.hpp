// Attention of a pass's rows over a paged cache.
//
// A row sees its sequence's committed positions and its own ancestors, itself included, or the last `window` of them.
// Keys are reduced by absolute position, in position-aligned blocks of 64 that are combined in order, so a row's bits
// depend on its query and its keys alone: not on other rows, the tree, where slots lie, how the prefix was filled or
// threads.
#pragma once

#include <cstdint>
#include <vector>

#include "ops_kernels.hpp"
#include "pool.hpp"

namespace taslak {

// One sequence's part of a pass. Position p lies in slot pages[p / 64] · 64 + p % 64; node n's K/V lies at position
// length + n, whatever its depth.
struct Share {
    std::vector<std::int32_t> pages;
    std::int64_t length;                // committed positions
    std::vector<std::int32_t> parents;  // of every uncommitted node, −1 = the committed prefix
    std::vector<std::int32_t> nodes;    // the pass's rows of this sequence
    std::int64_t base = 0;              // the text's position that stands first in the pages
};

// How a layer's queries see keys.
struct Scoring {
    int heads;  // query heads
    float scale;
    float cap = 0.0f;         // scores become cap · tanh(score / cap); 0: they stay
    std::int64_t window = 0;  // positions a row sees, itself included; 0 = all
};

// What attention needs to know of a pass; made once, used in every layer.
class Plan {
   public:
    // Throws std::invalid_argument where nodes, parents and pages don't fit together.
    explicit Plan(const std::vector<Share>& shares);

    int rows() const { return rows_; }
    std::int64_t slots() const { return slots_end_; }  // every slot is below this
    int most_rows() const { return most_rows_; }       // of any group
    std::int64_t slot(int row) const { return own_slots_[std::size_t(row)]; }  // where the row's own K/V goes
    std::int64_t position(int row) const { return positions_[std::size_t(row)]; }  // of the row in its text
    std::int64_t positions() const { return positions_end_; }                      // every position is below this

    // Up to 8 rows of one sequence, next to each other, that read their common K/V once.
    struct Group {
        int first, rows;
        std::size_t common, commons;             // where the common slots start, and how many there are
        struct { std::size_t start, count; } own[8];
    };
    const std::vector<Group>& groups() const { return groups_; }
    // Of the group's rows [first, last). q, out: of all rows, [rows, heads · head size]
    AttentionTask task(const Group& group, int first, int last, int kv_head, int head_size, const Scoring& scoring,
                       const float* q, float* out) const;

   private:
    void add(const Share& share, const std::int32_t* nodes, int count);

    int rows_ = 0, most_rows_ = 0;
    std::int64_t slots_end_ = 0, positions_end_ = 0;
    std::vector<Group> groups_;
    std::vector<std::int32_t> slots_, own_slots_;
    std::vector<std::int64_t> positions_;
};

// q, out: [rows, heads · head size]. Threads split (rows, K/V head), never a row's keys.
void attend(const Plan& plan, const float* q, const Cache& cache, const Scoring& scoring, float* out, Pool& pool);

}  // namespace taslak

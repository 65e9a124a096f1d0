// Attention of a pass's rows over a paged cache.
//
// A row sees its sequence's committed positions and its own ancestors, itself included. Keys are reduced by
// absolute position, in position-aligned blocks of 64 that are combined in order, so a row's bits depend on its
// query and its keys alone: not on other rows, the tree, where slots lie, how the prefix was filled or threads.
#pragma once

#include <cstdint>
#include <vector>

namespace taslak {

class Pool;

constexpr int kPage = 64;  // positions in a page of the cache, and in a block of the reduction

// One sequence's part of a pass. Slot of position p: pages[p / 64] · 64 + p % 64; node n's K/V lies at position
// length + n whatever its depth.
struct Share {
    std::vector<std::int64_t> pages;
    std::int64_t length;                // committed positions
    std::vector<std::int32_t> parents;  // of every uncommitted node, −1 = the committed prefix
    std::vector<std::int32_t> nodes;    // the pass's rows of this sequence
};

// What attention needs to know of a pass; made once, used in every layer.
class Plan {
   public:
    // Throws std::invalid_argument where nodes, parents and pages don't fit together.
    explicit Plan(std::vector<Share> shares);

    int rows() const { return int(rows_.size()); }
    std::int64_t position(int row) const { return end(row) - 1; }
    std::int64_t slot(int row) const { return slot(row, position(row)); }  // where the row's own K/V goes
    std::int64_t last_slot() const { return last_slot_; }                  // the highest slot anyone reads

    // Rows of one sequence that read K/V together; up to 8, next to each other.
    struct Group {
        int first, rows;
        std::int64_t common;  // positions below this are the same slots for all of them
    };
    const std::vector<Group>& groups() const { return groups_; }
    std::int64_t end(int row) const { return shares_[rows_[row].share].length + rows_[row].depth; }
    // The slot of one of the row's keys, by absolute position.
    std::int64_t slot(int row, std::int64_t position) const;

   private:
    struct Row {
        int share, depth;   // depth: ancestors, itself included
        std::size_t path;   // where they start in paths_
    };
    void group(int first, int last);

    std::vector<Share> shares_;
    std::vector<Row> rows_;
    std::vector<Group> groups_;
    std::vector<std::int32_t> paths_;
    std::int64_t last_slot_ = -1;
};

// One layer's keys and values: [slots, kv heads, head size], float32 or bfloat16.
struct Cache {
    void* keys;
    void* values;
    bool half;
    std::int64_t slots;
    int kv_heads, head_size;

    // Round k and v ([kv heads · head size]) to the cache's dtype and put them into a slot.
    void write(std::int64_t slot, const float* k, const float* v) const;
};

// q, out: [rows, heads · head size]. `scalar` takes the portable form of the kernel.
void attend(const Plan& plan, const float* q, const Cache& cache, int heads, float scale, float* out, Pool& pool,
            bool scalar = false);

}  // namespace taslak

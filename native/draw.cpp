#include "draw.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "draw_kernel.hpp"
#include "ops_kernels.hpp"

namespace taslak {

namespace {

constexpr double kSlack = 0.01;         // in log2 units: what float32 may lose near zero, a hundred times over
constexpr std::int64_t kPiece = 16384;  // ids worth waking a thread for
constexpr double kNone = -std::numeric_limits<double>::infinity();

double gumbel(std::uint64_t state, std::int64_t id) {
    std::uint64_t h = hash_product(state, id);
    h ^= h >> 31;
    return -std::log(-std::log(std::max(double(h >> 11) * 0x1p-53, 0x1p-54)));
}

struct Scored {
    double score;
    std::int64_t id;
    bool operator<(const Scored& other) const {  // comes before
        return score > other.score || (score == other.score && id < other.id);
    }
};

Chosen chosen(const std::vector<Scored>& list) {
    Chosen c;
    for (const Scored& s : list) {
        c.ids.push_back(s.id);
        c.scores.push_back(s.score);
    }
    return c;
}

// Keeps the k that come first, in order.
void offer(std::vector<Scored>& best, std::size_t k, Scored s) {
    best.insert(std::upper_bound(best.begin(), best.end(), s), s);
    if (best.size() > k) best.pop_back();
}

// The best k so far, best first, and the bound that others must reach to join them.
class Best {
   public:
    // floor: a score that is known to be reached
    Best(int k, double floor) : k_(std::size_t(k)), bound_(bound_of(floor)) {}

    void add(Scored s) {
        offer(best_, k_, s);
        if (best_.size() == k_) bound_ = std::max(bound_, bound_of(best_.back().score));
    }
    float bound() const { return bound_; }
    const std::vector<Scored>& list() const { return best_; }

   private:
    static float bound_of(double score) {
        const double scaled = score * kLog2e;
        return scaled < -1e38 ? -INFINITY : float(scaled - kSlack - std::abs(scaled) * 0x1p-20);
    }

    std::size_t k_;
    float bound_;
    std::vector<Scored> best_;
};

template <class Z>
Chosen best_of(const Scores& scores, const Z& z, std::int64_t count, std::uint64_t state, int k, double floor,
               Pool& pool) {
    if (k < 1) return {};
    const OpsKernels& use = ops_kernels();
    const std::int64_t pieces = std::clamp<std::int64_t>(count / kPiece, 1, pool.threads());
    std::vector<Best> found(std::size_t(pieces), Best(k, floor));
    pool.parallel_for(pieces, [&](std::int64_t piece) {
        Best& best = found[std::size_t(piece)];
        const std::int64_t last = count * (piece + 1) / pieces;
        for (std::int64_t i = count * piece / pieces; i < last;) {
            unsigned which = 0;
            i = use.find(scores, i, last, state, best.bound(), which);
            for (; which; which >>= 1, ++i) {
                if (!(which & 1) || !(z(i) > kNone)) continue;
                const std::int64_t id = scores.ids ? scores.ids[i] : i;
                best.add({z(i) + gumbel(state, id), id});
            }
        }
    });
    std::vector<Scored> all;
    for (const Best& best : found) all.insert(all.end(), best.list().begin(), best.list().end());
    std::sort(all.begin(), all.end());
    if (all.size() > std::size_t(k)) all.resize(std::size_t(k));
    return chosen(all);
}

// The k largest logits, each under its place in the row. largest: of all.
std::vector<Scored> largest_of(const float* logits, std::int64_t count, int k, float largest) {
    std::vector<Scored> best;
    if (k < 1) return best;
    const std::size_t enough = std::size_t(k);
    float bound = k == 1 ? std::nextafter(largest, -INFINITY) : -INFINITY;
    for (std::int64_t i = 0; best.size() < enough || bound < largest; ++i) {
        i = ops_kernels().above(logits, i, count, bound);
        if (i >= count) break;
        offer(best, enough, {double(logits[i]), i});
        if (best.size() == enough) bound = float(best.back().score);
    }
    return best;
}

}  // namespace

Chosen draw(const float* logits, const std::int64_t* ids, std::int64_t count, double temperature, std::uint64_t state,
            int k, Pool& pool) {
    const float largest = ops_kernels().largest(logits, count);
    if (largest == -INFINITY) throw std::domain_error("every token is banned");
    if (!std::isfinite(largest)) throw std::domain_error("the logits hold " + std::to_string(largest));
    if (temperature == 0.0) {
        std::vector<Scored> best = largest_of(logits, count, k, largest);
        for (Scored& s : best) s.id = ids ? ids[s.id] : s.id;
        return chosen(best);
    }
    const auto z = [=](std::int64_t i) { return (double(logits[i]) - double(largest)) / temperature; };
    const Scores scores{logits, largest, float(2.0 * kLog2e / temperature), nullptr, ids};
    // the largest logit has z = 0, and no noise is below −3.63
    return best_of(scores, z, count, state, k, k == 1 ? -3.63 : kNone, pool);
}

Chosen draw(const std::int64_t* ids, const double* z, std::int64_t count, std::uint64_t state, int k, Pool& pool) {
    const auto at = [=](std::int64_t i) { return z[i]; };
    return best_of({nullptr, 0.0f, 0.0f, z, ids}, at, count, state, k, kNone, pool);
}

Chosen rank(const float* logits, std::int64_t count, int k) {
    const OpsKernels& use = ops_kernels();
    const float largest = use.largest(logits, count);
    if (!std::isfinite(largest)) return {};
    std::vector<Scored> best = largest_of(logits, count, k, largest);
    const double sum = use.exp_sum(logits, largest, count);
    for (Scored& one : best) one.score = std::exp(one.score - double(largest)) / sum;
    return chosen(best);
}

}  // namespace taslak

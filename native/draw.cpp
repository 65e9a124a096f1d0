#include "draw.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "pool.hpp"
#include "vec.hpp"

namespace taslak {

namespace {

// splitmix64 (Steele, Lea, Flood 2014), as in noise.py
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15, kMul1 = 0xBF58476D1CE4E5B9, kMul2 = 0x94D049BB133111EB;

constexpr double kLog2e = 1.4426950408889634;
constexpr double kSlack = 0.01;          // in log2 units: what float32 may lose near zero, a hundred times over
constexpr std::int64_t kPiece = 16384;   // ids a thread takes at a time: smaller supports aren't worth waking it
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Everything but the last xor-shift, which leaves the upper 31 bits as they are.
std::uint64_t hash_product(std::uint64_t state, std::int64_t id) {
    std::uint64_t h = (std::uint64_t(id) + 1) * kGolden + state;
    h = (h ^ (h >> 30)) * kMul1;
    return (h ^ (h >> 27)) * kMul2;
}

double gumbel(std::uint64_t state, std::int64_t id) {
    std::uint64_t h = hash_product(state, id);
    h ^= h >> 31;
    return -std::log(-std::log(std::max(double(h >> 11) * 0x1p-53, 0x1p-54)));
}

// At least g · log2 e, from the product of the hash. With w = 1 − u: −log2 w, where w · 2³¹ is rounded down and its
// log2 replaced by the chord between powers of two, which the bits of a float are.
float noise_bound(std::uint64_t product) {
    const std::uint32_t w = std::uint32_t(~product >> 33);
    return 31.0f - (float(std::int32_t(float_to_bits(float(w)))) * 0x1p-23f - 127.0f);
}

struct Scored {
    double score;
    std::int64_t id;
    bool operator<(const Scored& other) const {  // better than
        return score > other.score || (score == other.score && id < other.id);
    }
};

// The best k so far, best first, and the bound under which nothing can join them.
class Best {
   public:
    // `floor`: a score that is known to be reached
    Best(int k, double floor) : k_(k), bound_(bound_of(floor)) {}

    void offer(Scored s) {
        best_.insert(std::upper_bound(best_.begin(), best_.end(), s), s);
        if (int(best_.size()) > k_) best_.pop_back();
        if (int(best_.size()) == k_) bound_ = std::max(bound_, bound_of(best_.back().score));
    }
    float bound() const { return bound_; }
    const std::vector<Scored>& list() const { return best_; }

   private:
    static float bound_of(double score) {
        const double scaled = score * kLog2e;
        return scaled < -1e38 ? -kInfinity : float(scaled - kSlack - std::abs(scaled) * 0x1p-20);
    }

    int k_;
    float bound_;
    std::vector<Scored> best_;
};

// Where scores come from: the exact z and its log2-scaled float form, one at a time and eight at a time.
struct Row {
    const float* logits;
    float largest;
    double temperature;

    std::int64_t id(std::int64_t i) const { return i; }
    double z(std::int64_t i) const { return (double(logits[i]) - double(largest)) / temperature; }
    // halves: the difference of two finite floats may be none
    float scaled(std::int64_t i) const { return (logits[i] * 0.5f - largest * 0.5f) * scale(); }
    float scale() const { return float(2.0 * kLog2e / temperature); }
#ifdef TASLAK_AVX2
    __m256 scaled8(std::int64_t i) const {
        const __m256 half = _mm256_set1_ps(0.5f);
        const __m256 x = _mm256_fmsub_ps(_mm256_loadu_ps(logits + i), half, _mm256_set1_ps(largest * 0.5f));
        return _mm256_mul_ps(x, _mm256_set1_ps(scale()));
    }
    // ids of lanes 0, 1, 4, 5 and of lanes 2, 3, 6, 7: the order in which their upper halves are zipped
    void ids8(std::int64_t i, __m256i& a, __m256i& b) const {
        a = _mm256_add_epi64(_mm256_set1_epi64x(i), _mm256_setr_epi64x(0, 1, 4, 5));
        b = _mm256_add_epi64(a, _mm256_set1_epi64x(2));
    }
#endif
};

struct Pairs {
    const std::int64_t* ids;
    const double* values;

    std::int64_t id(std::int64_t i) const { return ids[i]; }
    double z(std::int64_t i) const { return values[i]; }
    float scaled(std::int64_t i) const { return float(values[i] * kLog2e); }
#ifdef TASLAK_AVX2
    __m256 scaled8(std::int64_t i) const {
        const auto four = [&](std::int64_t at) {
            return _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_loadu_pd(values + at), _mm256_set1_pd(kLog2e)));
        };
        return _mm256_set_m128(four(i + 4), four(i));
    }
    void ids8(std::int64_t i, __m256i& a, __m256i& b) const {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + i));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + i + 4));
        a = _mm256_permute2x128_si256(low, high, 0x20);
        b = _mm256_permute2x128_si256(low, high, 0x31);
    }
#endif
};

template <class Source>
void consider(const Source& source, std::int64_t i, std::uint64_t state, Best& best) {
    const double z = source.z(i);
    if (z > -std::numeric_limits<double>::infinity()) best.offer({z + gumbel(state, source.id(i)), source.id(i)});
}

template <class Source>
void scan_scalar(const Source& source, std::int64_t first, std::int64_t last, std::uint64_t state, Best& best) {
    for (std::int64_t i = first; i < last; ++i) {
        const float bound = source.scaled(i) + noise_bound(hash_product(state, source.id(i)));
        if (bound >= best.bound()) consider(source, i, state, best);
    }
}

#ifdef TASLAK_AVX2

// Low 64 bits of a · b, from 32-bit products.
__m256i multiply(__m256i a, std::uint64_t b) {
    const __m256i low = _mm256_set1_epi64x(std::int64_t(b & 0xFFFFFFFF)), high = _mm256_set1_epi64x(std::int64_t(b >> 32));
    const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), _mm256_mul_epu32(a, high));
    return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}

__m256i hash_product(__m256i state, __m256i ids) {
    __m256i h = multiply(_mm256_add_epi64(ids, _mm256_set1_epi64x(1)), kGolden);
    h = _mm256_add_epi64(h, state);
    h = multiply(_mm256_xor_si256(h, _mm256_srli_epi64(h, 30)), kMul1);
    return multiply(_mm256_xor_si256(h, _mm256_srli_epi64(h, 27)), kMul2);
}

template <class Source>
void scan_avx2(const Source& source, std::int64_t first, std::int64_t last, std::uint64_t state, Best& best) {
    const __m256i states = _mm256_set1_epi64x(std::int64_t(state)), ones = _mm256_set1_epi32(-1);
    std::int64_t i = first;
    for (; i + 8 <= last; i += 8) {
        __m256i a, b;
        source.ids8(i, a, b);
        const __m256 upper = _mm256_shuffle_ps(_mm256_castsi256_ps(hash_product(states, a)),
                                               _mm256_castsi256_ps(hash_product(states, b)), 0b11011101);
        const __m256i w = _mm256_srli_epi32(_mm256_xor_si256(_mm256_castps_si256(upper), ones), 1);
        const __m256 chord = _mm256_cvtepi32_ps(_mm256_castps_si256(_mm256_cvtepi32_ps(w)));
        const __m256 noise = _mm256_fnmadd_ps(chord, _mm256_set1_ps(0x1p-23f), _mm256_set1_ps(158.0f));
        const __m256 bound = _mm256_add_ps(source.scaled8(i), noise);
        int can = _mm256_movemask_ps(_mm256_cmp_ps(bound, _mm256_set1_ps(best.bound()), _CMP_GE_OQ));
        for (; can; can &= can - 1) consider(source, i + __builtin_ctz(unsigned(can)), state, best);
    }
    scan_scalar(source, i, last, state, best);
}

#endif

template <class Source>
std::vector<std::int64_t> best_of(const Source& source, std::int64_t count, std::uint64_t state, int k, double floor,
                                  Pool& pool, bool scalar) {
    if (k < 1) return {};
    const int pieces = int(std::clamp<std::int64_t>(count / kPiece, 1, pool.threads()));
    std::vector<Best> found(pieces, Best(k, floor));
    const auto scan = [&](int piece) {
        const std::int64_t first = count * piece / pieces, last = count * (piece + 1) / pieces;
#ifdef TASLAK_AVX2
        if (!scalar) return scan_avx2(source, first, last, state, found[piece]);
#endif
        scan_scalar(source, first, last, state, found[piece]);
    };
    if (pieces == 1) {
        scan(0);
    } else {
        pool.run(pieces, scan);
    }
    std::vector<Scored> all;
    for (const Best& best : found) all.insert(all.end(), best.list().begin(), best.list().end());
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> ids;
    for (const Scored& s : all) {
        if (int(ids.size()) < k) ids.push_back(s.id);
    }
    return ids;
}

// Never below any element; a NaN is larger than everything.
float largest_of(const float* x, std::int64_t count) {
    std::int64_t i = 0;
    float largest = -kInfinity;
    bool nan = false;
#ifdef TASLAK_AVX2
    __m256 high = _mm256_set1_ps(-kInfinity), unordered = _mm256_setzero_ps();
    for (; i + 8 <= count; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        high = _mm256_max_ps(high, v);
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, high);
    largest = *std::max_element(lanes, lanes + 8);
    nan = _mm256_movemask_ps(unordered) != 0;
#endif
    for (; i < count; ++i) {
        nan |= x[i] != x[i];
        largest = std::max(largest, x[i]);
    }
    return nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

}  // namespace

std::vector<std::int64_t> draw(const float* logits, std::int64_t count, double temperature, std::uint64_t state, int k,
                               Pool& pool, bool scalar) {
    const float largest = largest_of(logits, count);
    if (!std::isfinite(largest)) {
        throw std::domain_error(largest == -kInfinity ? "every token is banned"
                                                      : "the logits hold " + std::to_string(largest));
    }
    // the largest logit has z = 0 and the smallest noise there is lies above −3.63
    const double floor = k == 1 ? -3.63 : -std::numeric_limits<double>::infinity();
    return best_of(Row{logits, largest, temperature}, count, state, k, floor, pool, scalar);
}

std::vector<std::int64_t> draw(const std::int64_t* ids, const double* z, std::int64_t count, std::uint64_t state,
                               int k, Pool& pool, bool scalar) {
    return best_of(Pairs{ids, z}, count, state, k, -std::numeric_limits<double>::infinity(), pool, scalar);
}

}  // namespace taslak

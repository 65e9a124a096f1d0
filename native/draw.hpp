// The draw: argmax(z + g) over a distribution's support, g = −log(−log u) the Gumbel noise of core/noise.py; and the
// ranking of a row without noise.
//
// Noise is hashed for every id, but the two logarithms are taken for the few ids that can still win: −log u ≥ 1 − u,
// so g ≤ −log(1 − u), and a cheap lower bound of log2(1 − u) tells the rest apart. What is compared in the end are
// doubles computed as in Python, with the C library's log. Ties go to the lower id.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace taslak {

// Largest score first, the lower id on ties.
struct Chosen {
    std::vector<std::int64_t> ids;
    std::vector<double> scores;
};

// The k largest of (logits − max) / temperature + g over a row, at temperature 0 of the logits alone; −inf is never
// chosen, so there may be fewer. `state` is what noise.py derives from (key, stream, position). Throws
// std::domain_error where the row holds a NaN or +inf, or nothing above −inf. logits: [count]; ids: of each logit, ascending, or null for 0, 1, 2, …
Chosen draw(const float* logits, const std::int64_t* ids, std::int64_t count, double temperature, std::uint64_t state,
            int k, Pool& pool);

// The same over a support: z + g of (ids[i], z[i]).
Chosen draw(const std::int64_t* ids, const double* z, std::int64_t count, std::uint64_t state, int k, Pool& pool);

// Indices of a row's k largest logits, and their softmax over the row; none where the row can't be drawn from.
Chosen rank(const float* logits, std::int64_t count, int k);

}  // namespace taslak

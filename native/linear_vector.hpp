// What the vector kernels of the products share.
//
// Lanes are outputs; a row's activations are broadcast from memory, which costs a load port and no arithmetic one. 16
// registers hold 4 rows × 16 outputs, so 5 … 8 rows are two turns over a piece of the panel that is still in the
// first-level cache. Two panels are read side by side, because one stream doesn't fill the memory's bandwidth while
// there is arithmetic between its loads (measured: 1.4 against 1.2 × the time of reading).
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "linear_kernels.hpp"

namespace taslak {
namespace {

inline void fetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Four bytes in every lane.
inline __m256i broadcast(const void* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, 4);
    return _mm256_set1_epi32(bits);
}

// f(std::integral_constant<int, rows>) for 1 ≤ rows ≤ kRows: a kernel is compiled for each number of rows.
template <class F>
inline void with_rows(int rows, const F& f) {
    switch (rows) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        case 4: return f(std::integral_constant<int, 4>());
        case 5: return f(std::integral_constant<int, 5>());
        case 6: return f(std::integral_constant<int, 6>());
        case 7: return f(std::integral_constant<int, 7>());
        default: return f(std::integral_constant<int, 8>());
    }
}

}  // namespace
}  // namespace taslak

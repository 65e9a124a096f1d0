#pragma once

#include <cstdint>

namespace taslak {

// Of an MLP's gate, or of its rows where it has none.
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh };

}  // namespace taslak

#include "linear.hpp"

#include <algorithm>

#include "cpu.hpp"
#include "linear_kernels.hpp"
#include "pool.hpp"

namespace taslak {
namespace {

const LinearKernels& kernels() {
#ifdef TASLAK_HAVE_AVX2
    if (path() == Path::avx2) return linear_avx2;
#endif
    return linear_scalar;
}

// Weights a task reads: small enough that the threads finish together although the machine has other work too, large
// enough that taking a task costs nothing.
constexpr std::int64_t kTaskBytes = 96 * 1024, kLeastBytes = 6 * 1024;
constexpr int kTasksEach = 6;  // tasks a thread, where there are bytes enough

std::int64_t panels_of_task(std::int64_t bytes_of_panel, std::int64_t bytes_in_all, int threads) {
    const std::int64_t bytes = std::clamp(bytes_in_all / (threads * kTasksEach), kLeastBytes, kTaskBytes);
    return std::max<std::int64_t>(1, bytes / bytes_of_panel);
}

// f(first row, rows) for the rows in blocks of up to kRows.
template <class F>
void each_block(int rows, const F& f) {
    for (int first = 0; first < rows; first += kRows) f(first, std::min(kRows, rows - first));
}

// Outputs of a panel that exist.
int outputs(const Packed& w, std::int64_t panel) { return int(std::min<std::int64_t>(width(w.kind), w.n - panel * width(w.kind))); }

void finish(const Product& p, std::int64_t panel, int first, int rows, const float* sums) {
    const int stride = width(p.weight->kind), count = outputs(*p.weight, panel);
    const std::int64_t column = panel * stride;
    for (int r = 0; r < rows; ++r, sums += stride) {
        const std::int64_t at = (first + r) * p.ldy + column;
        for (int i = 0; i < count; ++i) {
            float y = sums[i];
            if (p.bias) y += p.bias[column + i];
            if (p.residual) y += p.residual[at + i];
            p.y[at + i] = y;
        }
    }
}

void prepare(Activations& x, const Packed& w, Pool& pool) {
    if (is_quantised(w.kind) && !x.quantised) x.quantise(pool);
}

}  // namespace

void Activations::set(const float* rows_, int count, std::int64_t k_, std::int64_t ldx_) {
    x = rows_;
    rows = count;
    k = k_;
    ldx = ldx_;
    quantised = false;
}

void Activations::quantise(Pool& pool) {
    const std::size_t numbers = std::size_t(rows * k), groups = std::size_t(rows * (k / kGroup));
    if (codes.size() < numbers) codes.resize(numbers), wide.resize(numbers);
    if (scales.size() < groups) scales.resize(groups), sums.resize(groups);
    const auto row = [&](std::int64_t r) {
        const std::int64_t group = r * (k / kGroup);
        kernels().quantise(x + r * ldx, k, &codes[r * k], &wide[r * k], &scales[group], &sums[group]);
    };
    constexpr std::int64_t worth_sharing = 32 * 1024;  // below, one thread is done before another has begun
    if (rows * k < worth_sharing) {
        for (int r = 0; r < rows; ++r) row(r);
    } else {
        pool.parallel_for(rows, row);
    }
    quantised = true;
}

void linear(Activations& x, const Product* products, int count, Pool& pool) {
    std::int64_t bytes = 0;
    for (int i = 0; i < count; ++i) {
        prepare(x, *products[i].weight, pool);
        bytes += packed_bytes(*products[i].weight);
    }
    struct Part {
        const Product* product;
        std::int64_t each, first_task;  // panels of a task
    };
    std::vector<Part> parts;
    std::int64_t tasks = 0;
    for (int i = 0; i < count; ++i) {
        const Packed& w = *products[i].weight;
        const std::int64_t each = panels_of_task(panel_bytes(w.kind, w.k), bytes, pool.threads());
        parts.push_back({products + i, each, tasks});
        tasks += (panels(w) + each - 1) / each;
    }
    const LinearKernels& use = kernels();
    pool.parallel_for(tasks, [&](std::int64_t task) {
        std::size_t i = parts.size() - 1;
        while (parts[i].first_task > task) --i;
        const Product& product = *parts[i].product;
        const Packed& w = *product.weight;
        const std::int64_t first = (task - parts[i].first_task) * parts[i].each;
        const std::int64_t last = std::min(first + parts[i].each, panels(w)), size = panel_bytes(w.kind, w.k);
        alignas(64) float sums[kRows * kWidest];
        for (std::int64_t panel = first; panel < last; ++panel) {
            each_block(x.rows, [&](int row, int rows) {
                use.panel(w.kind, w.data + panel * size, x, row, rows, sums);
                finish(product, panel, row, rows, sums);
            });
        }
    });
}

void gated(Activations& x, const Packed& gate, const float* gate_bias, const Packed& up, const float* up_bias,
           float* y, std::int64_t ldy, Pool& pool) {
    prepare(x, gate, pool);
    prepare(x, up, pool);
    // where the two are packed alike their panels cover the same outputs; else one by one
    if (width(gate.kind) != width(up.kind)) {
        std::vector<float> other(std::size_t(x.rows * up.n));
        const Product products[] = {{&gate, gate_bias, nullptr, y, ldy}, {&up, up_bias, nullptr, other.data(), up.n}};
        linear(x, products, 2, pool);
        for (int r = 0; r < x.rows; ++r) kernels().silu_times(y + r * ldy, &other[std::size_t(r * up.n)], up.n);
        return;
    }
    const std::int64_t gate_bytes = panel_bytes(gate.kind, gate.k), up_bytes = panel_bytes(up.kind, up.k);
    const std::int64_t all = packed_bytes(gate) + packed_bytes(up);
    const std::int64_t each = panels_of_task(gate_bytes + up_bytes, all, pool.threads()), count = panels(gate);
    const int stride = width(gate.kind);
    const LinearKernels& use = kernels();
    pool.parallel_for((count + each - 1) / each, [&](std::int64_t task) {
        alignas(64) float gates[kRows * kWidest], ups[kRows * kWidest];
        const auto add_bias = [&](const float* bias, std::int64_t panel, int rows, float* sums) {
            if (!bias) return;
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < outputs(gate, panel); ++i) sums[r * stride + i] += bias[panel * stride + i];
            }
        };
        for (std::int64_t panel = task * each; panel < std::min((task + 1) * each, count); ++panel) {
            each_block(x.rows, [&](int row, int rows) {
                use.panel(gate.kind, gate.data + panel * gate_bytes, x, row, rows, gates);
                add_bias(gate_bias, panel, rows, gates);
                use.panel(up.kind, up.data + panel * up_bytes, x, row, rows, ups);
                add_bias(up_bias, panel, rows, ups);
                use.silu_times(gates, ups, rows * stride);
                const Product product{&gate, nullptr, nullptr, y, ldy};
                finish(product, panel, row, rows, gates);
            });
        }
    });
}

void linear(const float* x, int rows, std::int64_t ldx, const Packed& weight, const float* bias, float* y,
            std::int64_t ldy, Pool& pool) {
    thread_local Activations activations;  // its buffers are kept, so a call allocates nothing
    activations.set(x, rows, weight.k, ldx);
    linear(activations, Product{&weight, bias, nullptr, y, ldy}, pool);
}

}  // namespace taslak

#include "linear.hpp"

#include <algorithm>
#include <type_traits>

#include "cpu.hpp"
#include "linear_kernels.hpp"
#include "pool.hpp"

namespace taslak {
namespace {

LinearKernels kernels() {
#ifdef TASLAK_HAVE_AVX2
    LinearKernels use = linear_avx2;
#ifdef TASLAK_HAVE_VNNI
    if (path() == Path::avxvnni) use.quantised = avxvnni_products;
    if (path() == Path::avx512vnni) {
        use.bfloat16 = avx512_bfloat16_products;
        use.quantised = avx512vnni_products;
    }
#endif
    if (path() != Path::scalar) return use;
#endif
    return linear_scalar;
}

// Weights a task reads: small enough that the threads finish together although the machine has other work too, large
// enough that taking a task costs nothing.
constexpr std::int64_t kTaskBytes = 96 * 1024, kLeastBytes = 6 * 1024;
constexpr int kTasksEach = 6;  // tasks a thread, where there are bytes enough

std::int64_t pairs_of_task(std::int64_t bytes_of_panel, std::int64_t bytes_in_all, int threads) {
    const std::int64_t bytes = std::clamp(bytes_in_all / (threads * kTasksEach), kLeastBytes, kTaskBytes);
    return std::max<std::int64_t>(1, bytes / (2 * bytes_of_panel));
}

std::int64_t parts_of(std::int64_t whole, std::int64_t each) { return (whole + each - 1) / each; }

// f(first row, rows) for the rows in blocks of up to kRows.
template <class F>
void each_block(int rows, const F& f) {
    for (int first = 0; first < rows; first += kRows) f(first, std::min(kRows, rows - first));
}

// Outputs of a panel that exist.
int outputs(const Packed& w, std::int64_t panel) {
    return int(std::min<std::int64_t>(width(w.kind), w.n - panel * width(w.kind)));
}

// Sixteen of a row's outputs, of which there may be fewer: an int is known to the compiler where it is a constant.
template <class Count>
inline void finish(const Product& p, std::int64_t at, std::int64_t column, Count count, const float* sums) {
    float y[16];
    for (int i = 0; i < count; ++i) y[i] = sums[i];
    if (p.bias) for (int i = 0; i < count; ++i) y[i] += p.bias[column + i];
    if (p.residual) for (int i = 0; i < count; ++i) y[i] += p.residual[at + i];
    for (int i = 0; i < count; ++i) p.y[at + i] = y[i];
}

void finish(const Product& p, std::int64_t panel, int first, int rows, const float* sums) {
    const int stride = width(p.weight->kind), count = outputs(*p.weight, panel);
    const std::int64_t column = panel * stride;
    for (int r = 0; r < rows; ++r, sums += stride) {
        const std::int64_t at = (first + r) * p.ldy + column;
        int i = 0;
        for (; i + 16 <= count; i += 16) finish(p, at + i, column + i, std::integral_constant<int, 16>(), sums + i);
        if (i < count) finish(p, at + i, column + i, count - i, sums + i);
    }
}

void prepare(Activations& x, const Packed& w, Pool& pool) {
    if (is_quantised(w.kind) && !x.quantised) x.quantise(pool);
}

}  // namespace

void Activations::set(const float* given, int count, std::int64_t columns, std::int64_t stride) {
    x = given;
    rows = count;
    k = columns;
    ldx = stride;
    quantised = false;
}

void Activations::quantise(Pool& pool) {
    const std::size_t numbers = std::size_t(rows * k), groups = std::size_t(rows * (k / kGroup));
    if (codes_.size() < numbers) codes_.resize(numbers), wide_.resize(numbers);
    if (scales_.size() < groups) offsets_.resize(groups), scales_.resize(groups), sums_.resize(groups);
    const LinearKernels use = kernels();
    const OwnGroup all{codes_.data(), wide_.data(), offsets_.data(), scales_.data(), sums_.data()};
    const auto row = [&](std::int64_t r) {
        const std::int64_t first = r / kRows * kRows, count = std::min<std::int64_t>(kRows, rows - first);
        use.quantise(x + r * ldx, k, count, all.from(first * (k / kGroup) + (r - first)));
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
        std::int64_t each, first_task;  // pairs of panels a task; where its tasks begin
    };
    std::vector<Part> parts;
    std::int64_t tasks = 0;
    for (int i = 0; i < count; ++i) {
        const Packed& w = *products[i].weight;
        const std::int64_t each = pairs_of_task(panel_bytes(w.kind, w.k), bytes, pool.threads());
        parts.push_back({products + i, each, tasks});
        tasks += parts_of(panels(w), 2 * each);
    }
    const LinearKernels use = kernels();
    pool.parallel_for(tasks, [&](std::int64_t task) {
        std::size_t i = parts.size() - 1;
        while (parts[i].first_task > task) --i;
        const Product& product = *parts[i].product;
        const Packed& w = *product.weight;
        const std::int64_t size = panel_bytes(w.kind, w.k), first = (task - parts[i].first_task) * 2 * parts[i].each;
        const std::int64_t last = std::min(first + 2 * parts[i].each, panels(w));
        // the two panels of a pair lie half a task apart, so that each stream runs on without a gap
        const std::int64_t middle = first + (last - first + 1) / 2;
        alignas(64) float sums[2 * kRows * kWidest];
        for (std::int64_t panel = first; panel < middle; ++panel) {
            const std::int64_t other = panel + middle - first;
            const bool two = other < last;
            const std::uint8_t* a = w.data + panel * size;
            each_block(x.rows, [&](int row, int rows) {
                use.products(w.kind, a, two ? w.data + other * size : a, x, row, rows, sums);
                finish(product, panel, row, rows, sums);
                if (two) finish(product, other, row, rows, sums + rows * width(w.kind));
            });
        }
    });
}

void gated(Activations& x, const Packed& gate, const float* gate_bias, const Packed& up, const float* up_bias,
           float* y, std::int64_t ldy, Pool& pool, Activation activation) {
    const LinearKernels use = kernels();
    if (gate.kind != up.kind) {
        std::vector<float> ups(std::size_t(x.rows * up.n));
        const Product products[] = {{&gate, gate_bias, nullptr, y, ldy}, {&up, up_bias, nullptr, ups.data(), up.n}};
        linear(x, products, 2, pool);
        for (int r = 0; r < x.rows; ++r) use.activate(activation, y + r * ldy, &ups[std::size_t(r * up.n)], up.n);
        return;
    }
    prepare(x, gate, pool);
    const std::int64_t size = panel_bytes(gate.kind, gate.k), count = panels(gate);
    const std::int64_t each = pairs_of_task(size, 2 * packed_bytes(gate), pool.threads());
    const int stride = width(gate.kind);
    const Product product{&gate, nullptr, nullptr, y, ldy};
    pool.parallel_for(parts_of(count, each), [&](std::int64_t task) {
        alignas(64) float sums[2 * kRows * kWidest];
        const auto add_bias = [&](const float* bias, std::int64_t panel, int rows, float* to) {
            if (!bias) return;
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < outputs(gate, panel); ++i) to[r * stride + i] += bias[panel * stride + i];
            }
        };
        for (std::int64_t panel = task * each; panel < std::min((task + 1) * each, count); ++panel) {
            each_block(x.rows, [&](int row, int rows) {
                float* ups = sums + rows * stride;
                use.products(gate.kind, gate.data + panel * size, up.data + panel * size, x, row, rows, sums);
                add_bias(gate_bias, panel, rows, sums);
                add_bias(up_bias, panel, rows, ups);
                use.activate(activation, sums, ups, rows * stride);
                finish(product, panel, row, rows, sums);
            });
        }
    });
}

void activated(Activations& x, const Packed& weight, const float* bias, float* y, std::int64_t ldy,
               Activation activation, Pool& pool) {
    linear(x, {&weight, bias, nullptr, y, ldy}, pool);
    const LinearKernels use = kernels();
    const auto row = [&](std::int64_t r) { use.activate(activation, y + r * ldy, nullptr, weight.n); };
    pool.parallel_for(x.rows, row);
}

void linear(const float* x, int rows, std::int64_t ldx, const Packed& weight, const float* bias, float* y,
            std::int64_t ldy, Pool& pool) {
    thread_local Activations activations;  // its buffers are kept, so a call allocates nothing
    activations.set(x, rows, weight.k, ldx);
    linear(activations, Product{&weight, bias, nullptr, y, ldy}, pool);
}

}  // namespace taslak

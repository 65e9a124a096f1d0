#include "pool.hpp"

#include <chrono>
#include <fstream>
#include <set>
#include <string>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace taslak {
namespace {

// Long enough to bridge the Python between two kernels, short enough not to be felt as load.
constexpr auto kSpin = std::chrono::microseconds(60);

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin until `done()` or the time is up; says whether it is done. The clock is read every 32nd turn.
template <class F>
bool spin_until(const F& done) {
    const auto stop = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < stop);
    return done();
}

}  // namespace

// Each word on its own cache line: `next` is hammered by everyone, the rest is not.
struct Pool::Shared {
    alignas(64) std::atomic<std::uint32_t> epoch{0};  // goes up with every job
    alignas(64) std::atomic<std::int64_t> next{0};    // the first task nobody has taken
    alignas(64) std::atomic<int> active{0};           // workers that may be inside the job
    alignas(64) std::atomic<bool> open{false};        // whether a job may be entered
    alignas(64) std::atomic<int> asleep{0};
    std::atomic<bool> busy{false};  // a job is running: whoever else comes works alone
    std::atomic<bool> quit{false};
    std::int64_t tasks = 0;
    Call call = nullptr;
    const void* context = nullptr;
    std::mutex mutex;
    std::condition_variable wake;

    void take_tasks() {
        for (;;) {
            const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks) return;
            call(context, task);
        }
    }
};

Pool::Pool(int threads) : shared_(std::make_unique<Shared>()) { start(threads); }

Pool::~Pool() { stop(); }

void Pool::start(int threads) {
    threads_ = threads > 0 ? threads : available_cores();
    shared_->quit = false;
    const std::uint32_t seen = shared_->epoch;
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, seen] { work(*shared_, seen); });
}

void Pool::stop() {
    {
        std::lock_guard lock(shared_->mutex);
        shared_->quit = true;
        shared_->epoch.fetch_add(1);
    }
    shared_->wake.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
}

void Pool::set_threads(int threads) {
    while (shared_->busy.exchange(true)) std::this_thread::yield();
    if (threads != threads_) {
        stop();
        start(threads);
    }
    shared_->busy = false;
}

void Pool::run(std::int64_t tasks, Call call, const void* context) {
    Shared& s = *shared_;
    if (tasks <= 1 || threads_ == 1 || s.busy.exchange(true, std::memory_order_acquire)) {
        for (std::int64_t task = 0; task < tasks; ++task) call(context, task);
        return;
    }
    s.tasks = tasks;
    s.call = call;
    s.context = context;
    s.next.store(0, std::memory_order_relaxed);
    s.open.store(true);
    s.epoch.fetch_add(1);
    if (s.asleep.load() > 0) {
        std::lock_guard lock(s.mutex);  // a worker between its last look at the epoch and its sleep holds the mutex
        s.wake.notify_all();
    }
    s.take_tasks();
    // Whoever is not yet inside finds the job closed and stays out: a worker that sleeps is never waited for.
    s.open.store(false);
    while (s.active.load() > 0) pause();
    s.busy.store(false, std::memory_order_release);
}

void Pool::work(Shared& s, std::uint32_t seen) {
    const auto called = [&] { return s.epoch.load() != seen; };
    for (;;) {
        if (!spin_until(called)) {
            std::unique_lock lock(s.mutex);
            s.asleep.fetch_add(1);
            s.wake.wait(lock, called);
            s.asleep.fetch_sub(1);
        }
        seen = s.epoch.load();
        if (s.quit) return;
        s.active.fetch_add(1);
        if (s.open.load()) s.take_tasks();
        s.active.fetch_sub(1);
    }
}

int available_cores() {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        std::set<std::string> cores;  // a core is known by the list of its hyper-threads
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &allowed)) continue;
            const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
            std::string siblings;
            if (!std::getline(std::ifstream(folder + "/topology/thread_siblings_list"), siblings)) siblings = folder;
            cores.insert(siblings);
        }
        if (!cores.empty()) return int(cores.size());
    }
#endif
    const int threads = int(std::thread::hardware_concurrency());
    return threads > 0 ? threads : 1;
}

namespace {
std::atomic<Pool*> process_pool{nullptr};
std::mutex creation;
}  // namespace

Pool& default_pool() {
    if (Pool* pool = process_pool.load(std::memory_order_acquire)) return *pool;
    std::lock_guard lock(creation);
    if (process_pool.load() == nullptr) {
#if defined(__linux__)
        static const int registered = pthread_atfork(nullptr, nullptr, [] { process_pool.store(nullptr); });
        (void)registered;
#endif
        // never destroyed: workers may still be asleep in it while the process exits
        process_pool.store(new Pool(), std::memory_order_release);
    }
    return *process_pool.load();
}

}  // namespace taslak

// A small thread pool: fixed workers that take numbered tasks.
//
// Tasks split *outputs*, never a sum, so no result depends on who ran what. Workers spin for a moment after their last
// job, because the next layer's comes within microseconds, and then sleep, because PyTorch's own threads, and other
// programs, want the cores too. One job runs at a time; a job started inside a job, or while another thread's runs, is
// run by its caller alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace taslak {

class Pool {
   public:
    // `threads` counts the caller; 0 = the physical cores this process may use.
    explicit Pool(int threads = 0);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    // 0 as above. Waits for a running job; not to be called from a task.
    void set_threads(int threads);

    // Calls fn(task) for every task in [0, tasks), each once, in no particular order; returns when all are done.
    // fn must not throw.
    template <class F>
    void parallel_for(std::int64_t tasks, const F& fn) {
        const auto call = [](const void* context, std::int64_t task) { (*static_cast<const F*>(context))(task); };
        run(tasks, call, &fn);
    }

   private:
    using Call = void (*)(const void*, std::int64_t);
    struct Shared;

    void run(std::int64_t tasks, Call call, const void* context);
    void start(int threads);
    void stop();
    static void work(Shared& shared, std::uint32_t seen);

    std::atomic<int> threads_{1};
    std::unique_ptr<Shared> shared_;
    std::vector<std::thread> workers_;
};

// Physical cores this process may be scheduled on (hyper-threads of one core count once).
int available_cores();

// The process's pool. A forked child gets a new one: its parent's workers don't exist there.
Pool& default_pool();

}  // namespace taslak

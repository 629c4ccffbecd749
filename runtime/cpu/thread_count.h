// Scope that sets OpenMP's thread count of the calling thread.
#pragma once

#include <omp.h>

namespace lockstep {

/// Sets the calling thread's OpenMP thread count while a piece of work runs.
class ThreadCount {
public:
    explicit ThreadCount(int threads) : previous_(omp_get_max_threads()) {
        if (threads != previous_) omp_set_num_threads(threads);
    }
    ~ThreadCount() {
        if (omp_get_max_threads() != previous_) omp_set_num_threads(previous_);
    }
    ThreadCount(const ThreadCount&) = delete;
    ThreadCount& operator=(const ThreadCount&) = delete;

private:
    int previous_;
};

}  // namespace lockstep

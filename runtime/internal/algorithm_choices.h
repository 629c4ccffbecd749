// Which of several ways an operation is computed in where that is found by trials (ConvAlgorithm::benchmark): every
// question is decided once, kept, and answered alike from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep {

/// The name of the way by the question: operation, shapes, dtypes, threads, hardware.
using AlgorithmTable = std::map<std::string, std::string>;

/// Of one training run, or of the process. May be used by several threads.
class AlgorithmChoices {
public:
    using Try = std::function<std::string()>;
    /// Decides a question together with other processes: returns what counts for all of them, its own `tried()` or what
    /// another one was faster to find. Called without a lock.
    using Decide = std::function<std::string(const std::string& question, const Try& tried)>;
    explicit AlgorithmChoices(Decide together = {});

    /// One of `ways`: the one that is kept, or else that which `fastest` finds by trials, which is then kept. One that
    /// is kept and not among `ways` is tried again, and a warning says so.
    std::string choose(const std::string& question, const std::vector<std::string>& ways, const Try& fastest);
    AlgorithmTable table() const;
    /// What was decided elsewhere counts from now on, and nothing else.
    void replace(AlgorithmTable table);
    /// Questions for which this process has tried the ways.
    std::uint64_t trials() const;
    /// Distinct for all choices of the process, and another one after `replace`: what was made by them is kept by it.
    std::uint64_t version() const;

    /// Those of the innermost scope of this thread, or those of the process.
    static AlgorithmChoices& current();

private:
    Decide together_;
    mutable std::mutex mutex_;
    AlgorithmTable table_;
    std::uint64_t trials_ = 0, version_;
};

/// While one lives, this thread's kernels are made by `choices`; null: by those outside of it.
class AlgorithmScope {
public:
    explicit AlgorithmScope(AlgorithmChoices* choices);
    ~AlgorithmScope();
    AlgorithmScope(const AlgorithmScope&) = delete;
    AlgorithmScope& operator=(const AlgorithmScope&) = delete;

private:
    AlgorithmChoices* outer_;
};

/// The name of the way with the shortest time, where `seconds(way)` runs it once: the shortest of three, because others
/// work on the machine, after one that does not count and ends the trial of a way that is hopelessly slow. A way that
/// comes later must be 10% faster than those before it, so that equals don't change places by chance. A way that throws
/// std::exception is none; throws what the last one threw where all do.
std::string fastest_way(const std::vector<std::string>& ways, const std::function<double(const std::string&)>& seconds);

}  // namespace lockstep

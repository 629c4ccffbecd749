#include "lockstep/runtime/internal/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <utility>

#include "lockstep/runtime/log.h"

namespace lockstep {

namespace {

thread_local AlgorithmChoices* scope_choices = nullptr;

std::uint64_t next_version() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

bool is_among(const std::vector<std::string>& ways, const std::string& name) {
    return std::find(ways.begin(), ways.end(), name) != ways.end();
}

}  // namespace

AlgorithmChoices::AlgorithmChoices(Decide together) : together_(std::move(together)), version_(next_version()) {}

std::string AlgorithmChoices::choose(const std::string& question, const std::vector<std::string>& ways,
                                     const Try& fastest) {
    std::string unknown;
    {
        const std::scoped_lock lock(mutex_);
        if (const auto kept = table_.find(question); kept != table_.end()) {
            if (is_among(ways, kept->second)) return kept->second;
            unknown = kept->second;
        }
    }
    if (!unknown.empty())
        warn(fmt::format(
            "{}: the run used '{}', which is not available here; benchmarking again, so results may differ from now on",
            question, unknown));
    const Try counted = [&] {
        {
            const std::scoped_lock lock(mutex_);
            ++trials_;
        }
        return fastest();
    };
    std::string name = together_ ? together_(question, counted) : counted();
    if (!is_among(ways, name)) name = counted();  // another process may know algorithms that this one lacks
    log_message(LogLevel::info, [&] { return fmt::format("{}: '{}', by trials", question, name); });
    const std::scoped_lock lock(mutex_);
    table_[question] = name;
    return name;
}

AlgorithmTable AlgorithmChoices::table() const {
    const std::scoped_lock lock(mutex_);
    return table_;
}

void AlgorithmChoices::replace(AlgorithmTable table) {
    const std::scoped_lock lock(mutex_);
    table_ = std::move(table);
    version_ = next_version();
}

std::uint64_t AlgorithmChoices::trials() const {
    const std::scoped_lock lock(mutex_);
    return trials_;
}

std::uint64_t AlgorithmChoices::version() const {
    const std::scoped_lock lock(mutex_);
    return version_;
}

AlgorithmChoices& AlgorithmChoices::current() {
    static auto* of_process = new AlgorithmChoices;
    return scope_choices ? *scope_choices : *of_process;
}

AlgorithmScope::AlgorithmScope(AlgorithmChoices* choices)
    : outer_(std::exchange(scope_choices, choices ? choices : scope_choices)) {}

AlgorithmScope::~AlgorithmScope() { scope_choices = outer_; }

std::string fastest_algorithm(const std::vector<std::string>& ways,
                              const std::function<double(const std::string&)>& seconds) {
    constexpr double hopeless = 3, better = 0.9;
    std::string best;
    double shortest = std::numeric_limits<double>::infinity();
    std::exception_ptr last;
    for (const std::string& way : ways) {
        try {
            if (seconds(way) > hopeless * shortest) continue;
            std::array<double, 3> times{};
            for (double& each : times) each = seconds(way);
            const double time = *std::min_element(times.begin(), times.end());
            if (!best.empty() && time > better * shortest) continue;
            shortest = time;
            best = way;
        } catch (const std::exception&) {
            last = std::current_exception();
        }
    }
    if (best.empty() && last) std::rethrow_exception(last);
    return best;
}

}  // namespace lockstep

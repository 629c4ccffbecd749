#include "lockstep/parallel/engine/step_arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/runtime/internal/digest.h"

namespace lockstep {

namespace {

/// Equal for ranks whose clocks can be compared.
std::uint64_t hash_of_machine(int rank) {
    try {
        return digest_of(host_identity(HostScope::kernel, rank));
    } catch (const TransportError&) {  // no descriptor is left
        return digest_of(fmt::format("rank {}", rank));
    }
}

}  // namespace

void add_arrivals(std::vector<LoggedStep>& steps, Communicator& job) {
    const auto ranks = static_cast<std::size_t>(job.size());
    std::vector<double> own;
    for (const LoggedStep& step : steps)
        for (const StepSpan& span : step.spans)
            if (span.collective) own.push_back(span.begin);
    const std::array<std::uint64_t, 3> mine{hash_of_machine(job.rank()), own.size(),
                                            steps.empty() ? 0 : steps.front().number};
    std::vector<std::array<std::uint64_t, 3>> all(ranks);
    job.all_gather(&mine, all.data(), std::vector<std::size_t>(ranks, sizeof mine));
    if (std::any_of(all.begin(), all.end(), [&](const auto& other) { return other != mine; })) return;
    std::vector<double> times(own.size() * ranks);
    job.all_gather(own.data(), times.data(), std::vector<std::size_t>(ranks, own.size() * sizeof(double)));
    std::size_t number = 0;
    for (LoggedStep& step : steps) {
        std::vector<double> caused(ranks, 0);
        for (const StepSpan& span : step.spans) {
            if (!span.collective) continue;
            Arrival arrival{own[number], own[number], job.rank()};
            for (std::size_t rank = 0; rank < ranks; ++rank)
                if (const double time = times[rank * own.size() + number]; time > arrival.last) {
                    arrival.last = time;
                    arrival.last_rank = static_cast<int>(rank);
                }
            for (std::size_t rank = 0; rank < ranks; ++rank)
                caused[static_cast<std::size_t>(arrival.last_rank)] += arrival.last - times[rank * own.size() + number];
            step.arrivals.push_back(arrival);
            ++number;
        }
        const auto most = std::max_element(caused.begin(), caused.end());
        if (*most > 0) step.slowest_rank = static_cast<int>(most - caused.begin());
        step.waited_for_slowest = *most;
    }
}

}  // namespace lockstep

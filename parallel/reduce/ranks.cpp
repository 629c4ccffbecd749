#include "lockstep/parallel/reduce/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep {

void OtherRanks::abort(const std::string& reason) const {
    if (job) job->abort(reason);
    if (agreement) agreement->abort(reason);
    if (hook) hook->abort(reason);
}

void Ranks::connect(Device device, Stream& collective) {
    on_gpu_ = job_->on(device, &collective);
    if (use_.found && job_->size() > 1) agreement_ = job_->duplicate("used parameters");
}

std::shared_ptr<Buffer> Ranks::staging(std::size_t bytes) {
    if (!staging_ || staging_->bytes() < bytes) staging_ = Buffer::allocate_pinned(bytes);
    return staging_;
}

namespace {

/// Throws if a parameter is unused, as DDP does unless it must find unused parameters.
void require_all_used(const ParameterStore& store, const std::set<ParameterId>& used, int rank) {
    std::string unused;
    for (std::size_t a = 0; a < store.parameters().size(); ++a)
        for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i) {
            const ParameterId parameter{static_cast<int>(a), static_cast<int>(i)};
            const ArenaSegment& segment = store.segment(parameter);
            if (store.tensor(segment).requires_grad() && !used.contains(parameter))
                unused += (unused.empty() ? "" : ", ") + segment.name;
        }
    if (!unused.empty())
        throw InvalidArgument(
            fmt::format("rank {}: parameters that get no gradient: {}; use them in forward, freeze them "
                        "(requires_grad_(false)), or set find_unused_parameters",
                        rank, unused));
}

}  // namespace

void Ranks::require_allowed(const std::set<ParameterId>& used, const ParameterStore& store) {
    if (!job_) return;
    if (!use_.found && !use_.same_as_first) require_all_used(store, used, job_->rank());
    if (!use_.same_as_first) return;
    if (!first_used_) first_used_ = used;
    std::vector<ParameterId> changed;
    std::set_symmetric_difference(used.begin(), used.end(), first_used_->begin(), first_used_->end(),
                                  std::back_inserter(changed));
    if (changed.empty()) return;
    throw InvalidArgument(fmt::format(
        "rank {}: the training graph has changed: {} {} a gradient now and {} at first, which static_graph does not "
        "allow; use the same parameters in every step, or set find_unused_parameters instead",
        job_->rank(), store.segment(changed.front()).name, used.contains(changed.front()) ? "gets" : "does not get",
        used.contains(changed.front()) ? "did not" : "did"));
}

}  // namespace lockstep

// Enqueues a program in two phases: first everything that changes no persistent state, then the commit.
#pragma once

#include <fmt/format.h>
#include <string>

#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/replicas.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

/// Calls `work`, then `commit`. An exception of `work` is rethrown after all devices are idle, and the model is
/// unchanged. An exception of `commit` reports that the model may have changed.
template <class Work, class Commit>
void in_two_phases(EngineParts& parts, ReplicaKeeper& replicas, Work&& work, Commit&& commit) {
    const auto rest = [&] {
        try {
            parts.synchronize_all_devices();
        } catch (...) {  // devices that are idle because they are lost; the first error reports it
        }
    };
    try {
        work();
    } catch (...) {
        const std::exception_ptr first = std::current_exception();
        // The other processes have completed this step, so training cannot continue with them.
        parts.ranks.others().abort(fmt::format("rank {} failed in the middle of a call", parts.topology.rank.number()));
        rest();
        replicas.mark_stale();  // the failure may be in a copy of replica 0, now or on its device
        std::rethrow_exception(first);
    }
    try {
        commit();
    } catch (const std::exception& error) {
        const std::string what = error.what();
        rest();
        replicas.mark_stale();
        throw DeviceError(what + committed_in_part);
    }
}

}  // namespace lockstep

// State of eager work: step state, the host generator, and errors that kernels find in their data.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/runtime/random.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::eager_state {

// Step state of eager work, one per device.

struct State {
    const StepCounters* step;  ///< the seed of the last `manual_seed`
    StatusWord* good;          ///< a status word that is never written
};
/// In memory of `device`.
State of(Device device);
/// Ordinal for the next random operation since `manual_seed`.
std::uint32_t next_ordinal();
void reseed(std::uint64_t seed);

}  // namespace lockstep::eager_state

namespace lockstep {

// The host generator, for callers of functions that may draw from it.

/// Numbers drawn from `manual_seed`'s generator while an instance lives are drawn again afterwards.
class HostRandomScope {
public:
    HostRandomScope();
    ~HostRandomScope();
    HostRandomScope(const HostRandomScope&) = delete;
    HostRandomScope& operator=(const HostRandomScope&) = delete;

private:
    std::uint64_t position_;
};
/// Position in the sequence of numbers since `manual_seed`.
std::uint64_t host_random_position();
void set_host_random_position(std::uint64_t position);

// Errors that kernels of eager calls find in their data, such as a target out of range. They are known once the device
// has run the kernel; the first read of a dependent tensor throws them.

class EagerReport;

/// The reports that a storage's values depend on. Immutable; shared by storages that depend on the same ones.
struct EagerReports {
    recycled::Vector<std::shared_ptr<EagerReport>> all;
};

namespace eager_reports {

using Set = std::shared_ptr<const EagerReports>;  ///< null: none

/// A report for one call on `device`, on its eager stream: word() is zero there until the call's kernel writes it.
std::shared_ptr<EagerReport> begin(Device device, std::string_view call);
StatusWord* word(const EagerReport& report);
/// After the kernel: enqueues the copy of the word to the host.
Set end(const std::shared_ptr<EagerReport>& report);

/// The union of both, without reports that are settled.
void add(Set& set, const Set& more);
/// Reports of a tensor's storage; null for an undefined tensor.
const Set& of(const Tensor& tensor);
/// Makes `to`, which was just created or written, depend on the reports of `from`.
void carry(const Tensor& from, const Tensor& to);

/// For work on `device` that changes lasting state, but only if the values that it depends on are valid.
struct Gate {
    const StatusWord* word = nullptr;  ///< status word to check there; null: all are valid
    bool closed = false;               ///< an error was found, so nothing may change
};
/// Waits for all reports except those of that device.
Gate gate(const Set& set, Device device);

/// Waits for the reports, drops those without an error, and throws InvalidArgument for the first with one, which counts
/// as reported then.
void check(Set& set);
/// The same for all existing reports.
void check_all();

}  // namespace eager_reports

// Synchronization with devices without reading the reports.

/// Blocks the host until every stream of every device is empty; throws the first failure found.
void drain_all_streams();

}  // namespace lockstep

// What kernels of eager calls find in their data (a target out of range): known when the device gets there, thrown by
// whoever first reads something that depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/runtime/status.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

class EagerReport;

/// The reports that a storage's values depend on. Immutable; shared by storages that depend on the same ones.
struct EagerReports {
    std::vector<std::shared_ptr<EagerReport>> all;
};

namespace eager_reports {

using Set = std::shared_ptr<const EagerReports>;  ///< null: none

/// A report for one call on `device`, on its eager stream: word() is zero there, and written by the call's kernel.
std::shared_ptr<EagerReport> begin(Device device, std::string_view call);
StatusWord* word(const EagerReport& report);
/// After the kernel: has the word brought to the host.
Set end(const std::shared_ptr<EagerReport>& report);

/// Leaves those of both that may still have something to tell.
void add(Set& set, const Set& more);
/// Of a tensor's storage; null for an undefined tensor.
const Set& of(const Tensor& tensor);
/// `to`, which was just made or written, depends on what `from` does.
void carry(const Tensor& from, const Tensor& to);

/// For work on `device` that changes lasting state, but only where the values that it depends on are good.
struct Gate {
    const StatusWord* word = nullptr;  ///< to be looked at there; null: all are good
    bool closed = false;               ///< they are not, so nothing may change
};
/// Waits for all reports but one of that device.
Gate gate(const Set& set, Device device);

/// Waits for the reports, forgets those that are good, and throws InvalidArgument for the first that is not, which is
/// told with that.
void check(Set& set);
/// Likewise for all that there are.
void check_all();

}  // namespace eager_reports
}  // namespace lockstep

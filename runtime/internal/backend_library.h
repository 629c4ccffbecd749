// Backends in separate libraries, which shared builds load when a program first wants them, and the environment
// variable that excludes backends.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Reason why LOCKSTEP_BACKENDS excludes the backend `name` ("cuda", "gloo", "mpi", "nccl"); empty if it permits it.
/// Throws InvalidArgument if the variable has an unknown name.
std::string excluded_backend_reason(std::string_view name);

// Defined in shared builds only.

/// Reason why there is no CUDA driver; empty if there is one. Loads the driver, but asks it nothing.
std::string missing_driver_reason();

/// Address of the function `entry` of liblockstep_<name>, which is loaded from the directory of the library that
/// contains this function and is never unloaded. Returns nullptr and sets `absence` to the reason, in which the name of
/// the file occurs, if it cannot be loaded.
void* backend_entry(std::string_view name, const char* entry, std::string& absence);

}  // namespace lockstep

// Which backend can do what, on which kind of device: found out by trying, between two processes on this machine.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace info {

/// Of one operation on one kind of device: "yes", "no" or "no GPU".
struct CollectiveTrial {
    std::string device;     ///< "host", "cpu", "cuda"
    std::string operation;  ///< "all_reduce"
    std::string answer;
};

/// All trials of one backend.
struct BackendTrials {
    std::string backend;
    std::string absent;  ///< why there are none: "not built in", or what went wrong; else empty
    std::vector<CollectiveTrial> trials;
};

/// Starts this program twice for each backend, with the flag --try-collectives.
std::vector<BackendTrials> try_all_backends();

/// What such a process does: tries everything and writes it to `file` if it is rank 0.
void try_collectives(const std::string& backend, const std::filesystem::path& file);

}  // namespace info

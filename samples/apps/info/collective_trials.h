// Tries every operation of every backend on every kind of device, between two processes on this machine.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace info {

/// Result of one operation on one kind of device: "yes", "no" or "no GPU".
struct CollectiveTrial {
    std::string device;     ///< "host", "cpu", "cuda"
    std::string operation;  ///< "all_reduce"
    std::string answer;
};

/// All trials of one backend.
struct BackendTrials {
    std::string backend;
    std::string absent;  ///< reason for the lack of trials, such as "not built in"; otherwise empty
    std::vector<CollectiveTrial> trials;
};

/// Starts this program twice for each backend, with the flag --try-collectives.
std::vector<BackendTrials> try_all_backends();

/// Body of such a process: tries all operations; rank 0 writes the results to `file`.
void try_collectives(const std::string& backend, const std::filesystem::path& file);

}  // namespace info

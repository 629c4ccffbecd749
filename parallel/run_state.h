// What a checkpoint says of its run, beside weights and optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// How far a run has come.
struct RunState {
    std::uint64_t epoch = 0;      ///< the epoch to go on with
    std::int64_t batch = 0;       ///< its first batch that has not been trained
    std::int64_t batch_size = 0;  ///< rows of a batch; `batch` counts in them
    std::uint64_t steps = 0;      ///< committed so far; counts in random masks
    std::uint64_t seed = 0;       ///< of order and masks
    /// What the program wants to find again (UTF-8): the best accuracy so far, the name of its data.
    std::map<std::string, std::string> fields = {};
    /// What goes into the file of the weights, for those who use the model alone (UTF-8): the metadata of safetensors,
    /// beside "format". It is written, and a run that goes on sets it again.
    std::map<std::string, std::string> metadata = {};
};

/// A number as RunState::fields hold it: exact, and the same in every locale ("0x1.8p-1").
std::string field_of(double value);
/// The number in a field of the run, or nothing if it has no such field. Throws DataError for a text that is not a
/// number.
std::optional<double> number_in(const RunState& run, const std::string& field);

}  // namespace lockstep

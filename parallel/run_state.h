// State of a run in a checkpoint, next to weights and optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// Position and data of a run.
struct RunState {
    std::uint64_t epoch = 0;      ///< the epoch to resume in
    std::int64_t batch = 0;       ///< its first batch that has not been trained
    std::int64_t batch_size = 0;  ///< rows of a batch; the unit of `batch`
    std::uint64_t steps = 0;      ///< number of committed steps; an input of random masks
    std::uint64_t seed = 0;       ///< random seed for order and masks
    /// Data for the program's own use (UTF-8), such as the best accuracy so far or the name of the data set.
    std::map<std::string, std::string> fields = {};
    /// Metadata for users of the model without its run (UTF-8), stored in the file of the weights as safetensors
    /// metadata in addition to "format". It is only written: a resumed run must set it again.
    std::map<std::string, std::string> metadata = {};
};

/// A number in the form that RunState::fields use: exact and independent of the locale ("0x1.8p-1").
std::string field_of(double value);
/// The number in a field of the run, or nullopt if it has no such field. Throws DataError if the text is not a number.
std::optional<double> number_in(const RunState& run, const std::string& field);

}  // namespace lockstep

// State of a run in a checkpoint, next to weights and optimizer. Runner stores and restores it; these functions are for
// custom loops.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

class AdaptiveRates;
class GradScaler;

/// Position and data of a run.
struct RunState {
    std::uint64_t epoch = 0;      ///< the epoch to resume in
    std::int64_t batch = 0;       ///< its first batch that has not been trained
    std::int64_t batch_size = 0;  ///< rows of a batch; the unit of `batch`
    std::uint64_t steps = 0;      ///< number of committed steps; an input of random masks
    std::uint64_t seed = 0;       ///< random seed for order and masks
    /// Data for the program's own use (UTF-8), such as the best accuracy so far or the name of the dataset.
    std::map<std::string, std::string> fields = {};
    /// Metadata for users of the model without its run (UTF-8), stored in the file of the weights as safetensors
    /// metadata in addition to "format". It is only written: a resumed run must set it again.
    std::map<std::string, std::string> metadata = {};
};

/// A number in the form that RunState::fields use: exact and independent of the locale ("0x1.8p-1").
std::string field_of(double value);
/// The number in a field of the run, or nullopt if it has no such field. Throws DataError if the text is not a number.
std::optional<double> number_in(const RunState& run, const std::string& field);

/// Writes the scaler's state into the fields of a run that will be saved, as "grad_scaler NAME". Removes these fields
/// if the scaler is disabled. Waits for the steps so far.
void store_scaler(GradScaler& scaler, RunState& run);

/// Restores the scaler from the fields of `run`. Returns false, with the scaler unchanged, if `run` has no such fields.
/// Throws DataError for fields that are not numbers, InvalidArgument as GradScaler::load_state.
bool restore_scaler(GradScaler& scaler, const RunState& run);

/// Write and restore the state of the rates in the same way, as "AdaScale NAME" or under the name() of the rates.
/// Throw InvalidArgument while steps are in flight: `synchronize()` of the wrapper waits for them.
void store_rates(AdaptiveRates& rates, RunState& run);
bool restore_rates(AdaptiveRates& rates, const RunState& run);

}  // namespace lockstep

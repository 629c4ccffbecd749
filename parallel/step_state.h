// State of scaler and adaptive rates in the state of a run. Runner stores and restores them for its steps; these
// functions are for custom loops.
#pragma once

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/parallel/run_state.h"

namespace lockstep {

/// Writes the scaler's state into the fields of a run that will be saved, as "grad_scaler NAME". Removes these fields
/// if the scaler is disabled. Waits for the steps so far.
void keep_scaler(GradScaler& scaler, RunState& run);

/// Restores the scaler from the fields of `run`. Returns false, with the scaler unchanged, if `run` has no such fields.
/// Throws DataError for fields that are not numbers, InvalidArgument as GradScaler::load_state.
bool restore_scaler(GradScaler& scaler, const RunState& run);

/// Write and restore the state of the rates in the same way, as "AdaScale NAME" or under the name() of the rates.
/// Throw InvalidArgument while steps are in flight: `synchronize()` of the wrapper waits for them.
void keep_rates(AdaptiveRates& rates, RunState& run);
bool restore_rates(AdaptiveRates& rates, const RunState& run);

}  // namespace lockstep

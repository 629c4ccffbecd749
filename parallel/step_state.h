// What steps keep outside of model and optimizer, in the state of a run. Runner keeps and restores the scaler and the
// adaptive rates of its steps; these are for loops of one's own.
#pragma once

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/parallel/run_state.h"

namespace lockstep {

/// Writes the scaler's state into the fields of a run that is about to be saved, as "grad_scaler NAME". One that is not
/// enabled leaves none there. Waits for the steps so far.
void keep_scaler(GradScaler& scaler, RunState& run);

/// Brings the scaler to where that run was. False where the run had none, and the scaler stays as it is. Throws
/// DataError for fields that are no numbers, InvalidArgument as GradScaler::load_state.
bool restore_scaler(GradScaler& scaler, const RunState& run);

/// Likewise the state of the rates, as "AdaScale NAME" or whatever their name is. Throws InvalidArgument while steps
/// are under way: `synchronize()` of the wrapper waits for them.
void keep_rates(AdaptiveRates& rates, RunState& run);
bool restore_rates(AdaptiveRates& rates, const RunState& run);

}  // namespace lockstep

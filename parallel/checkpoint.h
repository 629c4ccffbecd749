// Checkpoints: safetensors files with the names, order and shapes of PyTorch's state_dict, and beside them what a run
// needs to go on as if it had never stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine.h"

namespace lockstep {

/// How far a run has come.
struct RunState {
    std::uint64_t epoch = 0;      ///< the epoch to go on with
    std::int64_t batch = 0;       ///< its first batch that has not been trained
    std::int64_t batch_size = 0;  ///< rows of a batch; `batch` counts in them
    std::uint64_t steps = 0;      ///< committed so far; counts in random masks
    std::uint64_t seed = 0;       ///< of order and masks
};

namespace detail {

void save_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path);
void load_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path);
void save_run(Engine& engine, SGD& optimizer, const RunState& run, const std::filesystem::path& checkpoint);
RunState load_run(Engine& engine, SGD& optimizer, const std::filesystem::path& checkpoint);

/// The tensors of a wrapper (after all its steps), or of a plain module.
template <class Model>
std::vector<NamedTensor> tensors_of(Model& model) {
    if constexpr (requires { model.engine(); }) {
        model.synchronize();
        return named_tensors(model.module());
    } else {
        return named_tensors(model);
    }
}

/// Of several processes one writes.
template <class Model>
bool writes_files(Model& model) {
    if constexpr (requires { model.engine(); })
        return model.engine().rank() == 0;
    else
        return true;
}

}  // namespace detail

/// Writes parameters and buffers of a wrapper or a plain module, tied ones under each of their names. An old file is
/// replaced at once or, after an error, as it was. Waits for all steps and throws what they have to throw;
/// InvalidArgument where the directory cannot be written, DataError when writing fails. Of several processes rank 0
/// writes, and the others only wait for their steps.
template <class Model>
void save(Model& model, const std::filesystem::path& path) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model);
    if (detail::writes_files(model)) detail::save_tensors(tensors, path);
}

/// Reads what `save` or PyTorch wrote into a wrapper or a plain module; "module." before a name is left out. Floating
/// tensors are converted to the model's dtype; of tied parameters one name is enough. Throws DataError, before anything
/// has changed, naming what is missing, unexpected or of another shape.
template <class Model>
void load(Model& model, const std::filesystem::path& path) {
    detail::load_tensors(detail::tensors_of(model), path);
}

/// Where the state of the run that belongs to a checkpoint lies: "FILE.resume".
std::filesystem::path resume_path(const std::filesystem::path& checkpoint);

/// Writes the state of the run beside `checkpoint`, which is there already: settings and momentum of the optimizer by
/// parameter name, steps, and `run`. Does not depend on devices or reduction. Throws as `save` does, and like it writes
/// on rank 0.
template <class Model>
void save_resume(Model& model, SGD& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    model.synchronize();
    if (detail::writes_files(model)) detail::save_run(model.engine(), optimizer, run, checkpoint);
}

/// Continues the run: `model` has been loaded from `checkpoint`. Sets the optimizer's settings and momentum and the
/// number of committed steps. Throws DataError, before anything has changed, when the file is damaged, does not fit the
/// model or belongs to another checkpoint; InvalidArgument when the optimizer has other groups.
template <class Model>
RunState load_resume(Model& model, SGD& optimizer, const std::filesystem::path& checkpoint) {
    return detail::load_run(model.engine(), optimizer, checkpoint);
}

}  // namespace lockstep

// Checkpoints: safetensors files with the names, order and shapes of PyTorch's state_dict, and beside them what a run
// needs to go on as if it had never stopped.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/load_options.h"
#include "lockstep/parallel/run_state.h"

namespace lockstep {

namespace internal {
class FileLock;
}  // namespace internal

/// Keeps other processes from saving to a checkpoint as long as it lives: a program that will save at its end holds one
/// from its beginning on. `save` and the others hold one while they write. Ends with its process, however that ends.
class CheckpointLock {
public:
    /// Throws InvalidArgument, naming the process, when another one has the checkpoint, and when it could not be saved
    /// there: no such directory, no permission, something else than a file at FILE or FILE.resume.
    explicit CheckpointLock(const std::filesystem::path& checkpoint);
    ~CheckpointLock();
    CheckpointLock(CheckpointLock&&) noexcept;
    CheckpointLock& operator=(CheckpointLock&&) noexcept;

private:
    std::shared_ptr<internal::FileLock> lock_;
};

namespace detail {

void save_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path);
LoadResult load_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path,
                        const LoadOptions& options);
void save_run(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer, const RunState& run,
              const std::filesystem::path& checkpoint);
RunState load_run(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                  const std::filesystem::path& checkpoint);
void save_both(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer, const RunState& run,
               const std::filesystem::path& checkpoint);
std::optional<RunState> load_both(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                                  const std::filesystem::path& checkpoint);

/// The tensors of a wrapper (after all its steps), or of a plain module.
template <class Model>
std::vector<NamedTensor> tensors_of(Model& model, const char* function) {
    if constexpr (requires { model.engine(); }) {
        model.synchronize();
        model.parameter_store()->require_members(function);
        return named_tensors(model.module());
    } else {
        std::vector<NamedTensor> tensors = named_tensors(model);
        if (const auto store = ParameterStore::find(tensors)) store->require_members(function);
        return tensors;
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

/// Where the state of the run that belongs to a checkpoint lies: "FILE.resume", beside the file that FILE means where
/// it is a symbolic link.
std::filesystem::path resume_path(const std::filesystem::path& checkpoint);

/// Writes a checkpoint that a run goes on from: the weights at `checkpoint`, as `save` does, and the state of the run
/// (settings and state of the optimizer by parameter name, steps, and `run`) at its resume_path. Whenever this
/// process ends, by SIGKILL or a power failure, the weights that are there and a state that belongs to them are there:
/// the old ones or the new ones. Does not depend on devices or reduction. Throws as `save` does, and InvalidArgument
/// for an optimizer of another model and a `run` that cannot be. Of several processes rank 0 writes.
template <class Model>
void save_checkpoint(Model& model, Optimizer& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save_checkpoint");
    if (detail::writes_files(model)) detail::save_both(model.engine(), tensors, optimizer, run, checkpoint);
}

/// Reads the weights at `checkpoint` and continues their run: sets the model's tensors, the optimizer's settings and
/// state and the number of committed steps. Nothing where there is no state of a run beside them: then only the
/// weights were loaded. Throws DataError, before anything has changed, when a file is damaged, does not fit the model,
/// or weights and state were not written together; InvalidArgument when it is another optimizer's or has other groups.
template <class Model>
std::optional<RunState> load_checkpoint(Model& model, Optimizer& optimizer, const std::filesystem::path& checkpoint) {
    return detail::load_both(model.engine(), detail::tensors_of(model, "load_checkpoint"), optimizer, checkpoint);
}

/// The state of the run of a checkpoint, without the model; nothing if there is none beside the weights. Throws
/// DataError when it is damaged.
std::optional<RunState> read_run(const std::filesystem::path& checkpoint);

/// Writes parameters and buffers of a wrapper or a plain module, tied ones under each of their names: a file that
/// PyTorch loads. An old file is replaced at once or, after an error, as it was; symbolic links are followed, mode and
/// owner stay. Waits for all steps and throws what they have to throw; InvalidArgument where the directory cannot be
/// written or another process is saving to the same file, DataError when writing fails. Of several processes rank 0
/// writes, and the others only wait for their steps. The state of a run that lies beside it belongs to the weights that
/// were there before: save_checkpoint writes both.
template <class Model>
void save(Model& model, const std::filesystem::path& path) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save");
    if (detail::writes_files(model)) detail::save_tensors(tensors, path);
}

/// Reads what `save` or PyTorch wrote, safetensors, the files that "model.safetensors.index.json" names, or the
/// state_dict of a file of torch.save (PthFile says which one), into a wrapper or a plain module; "module." and
/// "_orig_mod." before a name are left out. Floating tensors are converted to the model's dtype, buffers from any, one
/// element of shape (1) loads into a scalar, and a missing num_batches_tracked leaves the model's as it is, all as in
/// PyTorch; of tied parameters one name is enough; tensors of a dtype that Lockstep does not have are ignored unless
/// the model wants them. Throws DataError, before anything has changed, naming what is missing, unexpected or of
/// another shape; InvalidArgument for an `entry` that the file does not have. load_state_dict.
template <class Model>
LoadResult load(Model& model, const std::filesystem::path& path, const LoadOptions& options = {}) {
    return detail::load_tensors(detail::tensors_of(model, "load"), path, options);
}

/// Reads one tensor of such a file, with the dtype that it has there, to the host. `entry` is LoadOptions::entry.
/// Throws DataError as PthFile and SafetensorsFile do, and for a tensor of a type that Lockstep does not have;
/// InvalidArgument if the file has no tensor of that name.
Tensor load_tensor(const std::filesystem::path& path, const std::string& name, const std::string& entry = {});

/// Writes the state of the run alone, for the weights that the model has now and that were saved to `checkpoint`
/// before. A process that is killed between `save` and this leaves weights without a state: save_checkpoint does not.
/// Throws as that.
template <class Model>
void save_resume(Model& model, Optimizer& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save_resume");
    if (detail::writes_files(model)) detail::save_run(model.engine(), tensors, optimizer, run, checkpoint);
}

/// Continues the run of weights that the model has been loaded with, as load_checkpoint does. Throws as that; DataError
/// where there is no state of a run.
template <class Model>
RunState load_resume(Model& model, Optimizer& optimizer, const std::filesystem::path& checkpoint) {
    return detail::load_run(model.engine(), detail::tensors_of(model, "load_resume"), optimizer, checkpoint);
}

}  // namespace lockstep

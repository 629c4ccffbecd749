// Checkpoints: safetensors files with the names, order and shapes of PyTorch's state_dict, and next to them the data
// from which a run resumes as if it had never stopped.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
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

/// An open file, pipe or socket, which the caller owns.
struct FileDescriptor {
    int number;
};

/// Prevents other processes from saving to a checkpoint while it exists: a program that saves at its end acquires one
/// at its start. `save` and the other functions hold one while they write. Released when its process ends, even if
/// killed.
class CheckpointLock {
public:
    /// Throws InvalidArgument, naming the process, if another one holds the checkpoint. Also throws it if the
    /// checkpoint could not be saved: no such directory, no permission, or FILE or FILE.resume is not a regular file.
    explicit CheckpointLock(const std::filesystem::path& checkpoint);
    ~CheckpointLock();
    CheckpointLock(CheckpointLock&&) noexcept;
    CheckpointLock& operator=(CheckpointLock&&) noexcept;

private:
    std::shared_ptr<internal::FileLock> lock_;
};

namespace detail {

void save_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path);
std::vector<std::byte> save_tensors(const std::vector<NamedTensor>& tensors);
void save_tensors(const std::vector<NamedTensor>& tensors, std::ostream& out);
void save_tensors(const std::vector<NamedTensor>& tensors, FileDescriptor out);
LoadResult load_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path,
                        const LoadOptions& options);
LoadResult load_tensors(const std::vector<NamedTensor>& tensors, std::span<const std::byte> bytes,
                        const LoadOptions& options);
LoadResult load_tensors(const std::vector<NamedTensor>& tensors, std::istream& in, const LoadOptions& options);
LoadResult load_tensors(const std::vector<NamedTensor>& tensors, FileDescriptor in, const LoadOptions& options);
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

/// Whether this process writes files: with several processes, only rank 0 does.
template <class Model>
bool writes_files(Model& model) {
    if constexpr (requires { model.engine(); })
        return model.engine().rank() == 0;
    else
        return true;
}

}  // namespace detail

/// Path of the run state of a checkpoint: "FILE.resume" next to the weights. If FILE is a symbolic link, it is next to
/// the link's target.
std::filesystem::path resume_path(const std::filesystem::path& checkpoint);

/// Writes a checkpoint from which a run resumes. The weights are written to `checkpoint`, as `save` does. The state of
/// the run is written to its resume_path: settings and state of the optimizer by parameter name, steps, and `run`.
/// Atomic: if the process is killed or the power fails, weights and state are both the old ones or both the new ones.
/// The files do not depend on devices or reduction. Throws as `save` does, and InvalidArgument for an optimizer of
/// another model and an invalid `run`. With several processes, rank 0 writes.
template <class Model>
void save_checkpoint(Model& model, Optimizer& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save_checkpoint");
    if (detail::writes_files(model)) detail::save_both(model.engine(), tensors, optimizer, run, checkpoint);
}

/// Reads the weights at `checkpoint` and resumes their run: sets the model's tensors, the optimizer's settings and
/// state and the number of committed steps. Returns nullopt if no state of a run is stored next to the weights; then
/// only the weights are loaded. Throws DataError, before any change, if a file is damaged or does not fit the model, or
/// if weights and state were not written together. Throws InvalidArgument if the state is of another optimizer or has
/// other groups.
template <class Model>
std::optional<RunState> load_checkpoint(Model& model, Optimizer& optimizer, const std::filesystem::path& checkpoint) {
    return detail::load_both(model.engine(), detail::tensors_of(model, "load_checkpoint"), optimizer, checkpoint);
}

/// The state of the run of a checkpoint, without the model; nullopt if no state is stored next to the weights. Throws
/// DataError if it is damaged.
std::optional<RunState> read_run(const std::filesystem::path& checkpoint);

/// Writes parameters and buffers of a wrapper or a plain module, tied ones under each of their names, as a file that
/// PyTorch can load. An existing file is replaced atomically and is unchanged after an error. Symbolic links are
/// followed; mode and owner are preserved. Waits for all steps and throws their errors. Throws InvalidArgument if the
/// directory is not writable or another process is saving to the same file, DataError if writing fails. With several
/// processes rank 0 writes, and the others only wait for their steps. An existing run state still belongs to the
/// previous weights: to write both, use save_checkpoint.
template <class Model>
void save(Model& model, const std::filesystem::path& path) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save");
    if (detail::writes_files(model)) detail::save_tensors(tensors, path);
}

/// Reads weights into a wrapper or a plain module. Formats: safetensors files of `save` or PyTorch, the state_dict in a
/// file of torch.save (PthFile documents which one), and the files of either format that
/// "model.safetensors.index.json" or "pytorch_model.bin.index.json" names.
/// Prefixes "module." and "_orig_mod." are removed from names. As in PyTorch, floating tensors are converted to the
/// model's dtype, and buffers from any dtype. A tensor of shape (1) loads into a scalar. A missing num_batches_tracked
/// leaves the model's unchanged. Tied parameters need only one of their names. Tensors with
/// unsupported dtypes are ignored unless the model needs them. Throws DataError, before any change, naming tensors that
/// are missing, unexpected or of another shape; InvalidArgument for an `entry` that the file does not have.
/// load_state_dict.
template <class Model>
LoadResult load(Model& model, const std::filesystem::path& path, const LoadOptions& options = {}) {
    return detail::load_tensors(detail::tensors_of(model, "load"), path, options);
}

// The same weights, in memory and in streams.

/// The bytes of the file that `save` would write: for a database, an archive or a message. With several processes, rank
/// 0 gets them, and the others get nothing.
template <class Model>
std::vector<std::byte> save_to_memory(Model& model) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save_to_memory");
    return detail::writes_files(model) ? detail::save_tensors(tensors) : std::vector<std::byte>();
}

/// Writes these bytes at the position of `out`, a std::ostream or a FileDescriptor (blocking). Throws DataError if
/// writing fails; then `out` may have received a part of them. torch::save(module, stream).
template <class Model>
void save(Model& model, std::ostream& out) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save");
    if (detail::writes_files(model)) detail::save_tensors(tensors, out);
}
template <class Model>
void save(Model& model, FileDescriptor out) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save");
    if (detail::writes_files(model)) detail::save_tensors(tensors, out);
}

/// Reads weights from the bytes of a safetensors file or of a file of torch.save, otherwise as from a file; messages
/// call them "memory". The bytes must not change during the call. With several processes, every rank needs them.
template <class Model>
LoadResult load(Model& model, std::span<const std::byte> bytes, const LoadOptions& options = {}) {
    return detail::load_tensors(detail::tensors_of(model, "load"), bytes, options);
}

/// Reads `in`, a std::istream or a FileDescriptor, from its position to its end, then as from memory; messages call it
/// "stream". Throws DataError if reading fails. torch::load(module, stream).
template <class Model>
LoadResult load(Model& model, std::istream& in, const LoadOptions& options = {}) {
    return detail::load_tensors(detail::tensors_of(model, "load"), in, options);
}
template <class Model>
LoadResult load(Model& model, FileDescriptor in, const LoadOptions& options = {}) {
    return detail::load_tensors(detail::tensors_of(model, "load"), in, options);
}

/// Reads one tensor of such a file to the host, with the dtype that it has in the file. `entry` is LoadOptions::entry.
/// Throws DataError as PthFile and SafetensorsFile do, and for a tensor with an unsupported dtype; InvalidArgument if
/// the file has no tensor of that name.
Tensor load_tensor(const std::filesystem::path& path, const std::string& name, const std::string& entry = {});

/// Writes only the state of the run, for the current weights of the model, which must already be saved to `checkpoint`.
/// Unlike with save_checkpoint, a process that is killed between `save` and this call leaves weights without a state.
/// Throws as save_checkpoint.
template <class Model>
void save_resume(Model& model, Optimizer& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
    const std::vector<NamedTensor> tensors = detail::tensors_of(model, "save_resume");
    if (detail::writes_files(model)) detail::save_run(model.engine(), tensors, optimizer, run, checkpoint);
}

/// Resumes the run of weights that are already loaded into the model, as load_checkpoint does. Throws as
/// load_checkpoint; DataError if no state of a run is stored.
template <class Model>
RunState load_resume(Model& model, Optimizer& optimizer, const std::filesystem::path& checkpoint) {
    return detail::load_run(model.engine(), detail::tensors_of(model, "load_resume"), optimizer, checkpoint);
}

}  // namespace lockstep

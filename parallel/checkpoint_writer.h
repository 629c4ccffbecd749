// Checkpoints written in the background during training.
//
//     ls::CheckpointWriter writer;
//     for (...) {
//         model.step(sgd, images, labels, ls::nll_loss);
//         if (++run.steps % 1000 == 0) writer.save(model, sgd, run, "net.safetensors");
//     }
//     writer.wait();
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint.h"

namespace lockstep {

/// Result of a save.
struct FinishedSave {
    std::filesystem::path checkpoint;
    std::string error = {};  ///< why the save failed; empty: it succeeded
};

/// Saves checkpoints in a background thread. The devices copy weights and state to the host between two steps, and
/// steps wait for nothing else. Steps can still be enqueued meanwhile, and the files are written afterwards. Saves are
/// serialized: the next one waits until the last one is written, so that the host holds one copy. Its memory is reused.
///
/// A failed save (disk full, no permission) logs a warning each time and does not interrupt training. The old
/// checkpoint is unchanged. If an earlier step was refused, nothing is written and the step throws its error. Only one
/// thread at a time may use a writer.
class CheckpointWriter {
public:
    CheckpointWriter();
    /// Waits for pending writes; never throws.
    ~CheckpointWriter();
    CheckpointWriter(CheckpointWriter&&) noexcept;
    CheckpointWriter& operator=(CheckpointWriter&&) noexcept;

    /// Saves as save_checkpoint does, with the state after all steps so far, to each of the given paths. Throws
    /// InvalidArgument for an optimizer of another model, for a `run` that could not be loaded again, and in a forked
    /// child. With several processes rank 0 writes, and the others do nothing.
    template <class Model>
    void save(Model& model, Optimizer& optimizer, const RunState& run,
              const std::vector<std::filesystem::path>& checkpoints) {
        if (detail::writes_files(model))
            begin(model.engine(), named_tensors(model.module()), optimizer, run, checkpoints);
        else
            skip(checkpoints);
    }
    template <class Model>
    void save(Model& model, Optimizer& optimizer, const RunState& run, const std::filesystem::path& checkpoint) {
        save(model, optimizer, run, std::vector<std::filesystem::path>{checkpoint});
    }

    /// The saves that have ended since the last call, in order.
    std::vector<FinishedSave> finished();
    /// Waits for pending writes. Throws the error of the last save, once. A no-op in a forked child.
    void wait();

private:
    void begin(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer, const RunState& run,
               const std::vector<std::filesystem::path>& checkpoints);
    void skip(const std::vector<std::filesystem::path>& checkpoints);
    struct Impl;
    Impl& impl() const;
    std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep

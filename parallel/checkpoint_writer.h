// Checkpoints written while training goes on.
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

/// What has become of a save.
struct FinishedSave {
    std::filesystem::path checkpoint;
    std::string error = {};  ///< why it is not there; empty: it is, complete
};

/// Saves checkpoints in a thread of its own. The devices copy weights and state to the host between two steps, and that
/// is all a step may wait for: steps go on to be enqueued meanwhile, and files are written afterwards. One save at a
/// time: the next one waits until the last one is written, so that the host holds one copy. That memory is kept.
///
/// A save that fails (a full disk, no permission) is a warning, which says so each time, and training goes on. The old
/// checkpoint is as it was. Where a step before it was refused, nothing is written: the step throws. One thread at a
/// time uses a writer.
class CheckpointWriter {
public:
    CheckpointWriter();
    /// Waits for what is being written; never throws.
    ~CheckpointWriter();
    CheckpointWriter(CheckpointWriter&&) noexcept;
    CheckpointWriter& operator=(CheckpointWriter&&) noexcept;

    /// Saves as save_checkpoint does, with the state that all steps so far lead to; to several places where several are
    /// given. Throws InvalidArgument for an optimizer of another model, a `run` that cannot be loaded again and in a
    /// child that was forked meanwhile. Of several processes rank 0 writes, and the others do nothing.
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

    /// Those that have ended since the last call, in order.
    std::vector<FinishedSave> finished();
    /// Waits for what is being written. Throws what the last save threw, once. Nothing in a child that was forked.
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

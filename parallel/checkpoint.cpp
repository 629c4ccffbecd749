// A save replaces two files, and the process may be killed between any two instructions. The run state is therefore
// written first, next to the old one, as "FILE.resume.next". Then the new weights replace the old ones, which makes the
// new pair the valid one. Finally the new state is renamed to "FILE.resume". Loading selects the state that belongs to
// the weights, under either name.
#include "lockstep/parallel/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <exception>
#include <mutex>
#include <utility>

#include "lockstep/parallel/checkpoint/host_optimizer_state.h"
#include "lockstep/parallel/checkpoint/model_weights.h"
#include "lockstep/parallel/checkpoint/resume_file.h"
#include "lockstep/parallel/checkpoint/snapshot.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/file_lock.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using internal::ResumeFile;
using Path = std::filesystem::path;

/// Path of a run state until its weights are written.
Path next_resume_path(const Path& checkpoint) { return internal::followed(resume_path(checkpoint)).string() + ".next"; }

bool is_there(const Path& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

/// While it exists, no other thread or process writes this checkpoint.
class Writing {
public:
    explicit Writing(const Path& checkpoint)
        : lock_(internal::FileLock::acquire(checkpoint)), guard_(lock_->writing()) {}

private:
    std::shared_ptr<internal::FileLock> lock_;
    std::lock_guard<std::mutex> guard_;
};

/// Completes an interrupted save: renames the state under its temporary name if its weights were written, otherwise
/// removes it. The next save would overwrite a valid one.
void finish_interrupted_save(const Path& checkpoint) {
    const Path next = next_resume_path(checkpoint), resume = internal::followed(resume_path(checkpoint));
    if (!is_there(next)) return;
    bool belongs = false;
    try {
        belongs = ResumeFile(next).belongs_to(internal::digest_of(SafetensorsFile(checkpoint)), checkpoint);
    } catch (const Error&) {  // no weights, or unusable ones
    }
    std::error_code error;
    if (belongs)
        std::filesystem::rename(next, resume, error);
    else
        std::filesystem::remove(next, error);
    if (error)
        throw DataError(fmt::format("{}: an interrupted save cannot be completed: {}", next.string(), error.message()));
    sync_parent_directory(resume);
}

void write_weights(AtomicFile& file, const Path& path, const std::vector<SafetensorsTensor>& weights,
                   SafetensorsMetadata metadata = {}) {
    internal::put_weights(path, weights, std::move(metadata),
                          [&](std::span<const std::byte> bytes) { file.write(bytes); });
}

/// Changes with each file that a save replaces.
using FileStamps = std::array<std::pair<ino_t, std::int64_t>, 3>;
FileStamps file_stamps(const Path& checkpoint) {
    FileStamps all{};
    const std::array<Path, 3> paths{checkpoint, resume_path(checkpoint), next_resume_path(checkpoint)};
    for (std::size_t i = 0; i < paths.size(); ++i) {
        struct stat found {};
        if (::stat(paths[i].c_str(), &found) == 0)
            all[i] = {found.st_ino, std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
    }
    return all;
}

/// The state at `path`, if it exists and belongs to the weights with this digest, which `checkpoint` holds.
std::optional<ResumeFile> state_at(const Path& path, const std::string& weights, const Path& checkpoint) {
    if (!is_there(path)) return std::nullopt;
    ResumeFile state(path);
    if (!state.belongs_to(weights, checkpoint)) return std::nullopt;
    return state;
}

/// The state that belongs to the weights, under either name. Returns nullopt if no state is stored next to the weights;
/// throws DataError if the stored one is damaged or belongs to other weights.
std::optional<ResumeFile> find_state(const std::string& weights, const Path& checkpoint) {
    const Path resume = resume_path(checkpoint);
    std::exception_ptr damage;
    try {
        if (auto state = state_at(resume, weights, checkpoint)) return state;
    } catch (const DataError&) {
        damage = std::current_exception();
    }
    try {
        if (auto state = state_at(next_resume_path(checkpoint), weights, checkpoint)) return state;
    } catch (const DataError&) {  // state of an interrupted save, unrelated to these weights
    }
    if (damage) std::rethrow_exception(damage);
    if (is_there(resume))
        internal::refuse_resume(
            resume, fmt::format("it does not belong to {}, which contains other weights", checkpoint.string()));
    return std::nullopt;
}

/// Calls `read` again if another process has saved in the meantime.
template <class Read>
auto read_steadily(const Path& checkpoint, Read&& read) {
    constexpr int most = 100;
    for (int attempt = 1;; ++attempt) {
        const FileStamps before = file_stamps(checkpoint);
        try {
            return read();
        } catch (const DataError&) {
            if (attempt == most || file_stamps(checkpoint) == before) throw;
        }
    }
}

/// Waits for all steps. Their errors have been thrown already.
void wait_for(internal::Snapshot& snapshot) {
    if (!snapshot.wait()) throw DeviceError("the model cannot be saved: an earlier step has failed; load a checkpoint");
}

/// A checkpoint that is read and checked, before anything changes.
class StagedRun {
public:
    StagedRun(Engine& engine, Optimizer& optimizer, const ResumeFile& file)
        : engine_(engine),
          optimizer_(optimizer),
          run_(file.run()),
          algorithms_(file.algorithms()),
          state_(file, *engine.store(), internal::states_with(optimizer, file)) {}
    RunState store() {
        optimizer_.set_all(state_.settings());
        state_.store(engine_, optimizer_);
        engine_.set_steps_done(run_.steps);
        engine_.set_algorithms(algorithms_);
        return run_;
    }

private:
    Engine& engine_;
    Optimizer& optimizer_;
    RunState run_;
    internal::SavedAlgorithms algorithms_;
    internal::StagedOptimizerState state_;
};

}  // namespace

CheckpointLock::CheckpointLock(const Path& checkpoint) : lock_(internal::FileLock::acquire(checkpoint)) {
    // Reports unwritable files now instead of at the first save. The probes leave nothing behind.
    for (const Path& path : {checkpoint, resume_path(checkpoint), next_resume_path(checkpoint)})
        const AtomicFile probe(path);
}
CheckpointLock::~CheckpointLock() = default;
CheckpointLock::CheckpointLock(CheckpointLock&&) noexcept = default;
CheckpointLock& CheckpointLock::operator=(CheckpointLock&&) noexcept = default;

std::optional<RunState> read_run(const Path& checkpoint) {
    const auto state = find_state(internal::digest_of(SafetensorsFile(checkpoint)), checkpoint);
    return state ? std::optional(state->run()) : std::nullopt;
}

Path resume_path(const Path& checkpoint) { return internal::followed(checkpoint).string() + ".resume"; }

Tensor load_tensor(const Path& path, const std::string& name, const std::string& entry) {
    return internal::read_tensor(path, name, entry);
}

void internal::write_checkpoint(const Snapshot& snapshot, const Path& checkpoint) {
    const Writing here(checkpoint);
    finish_interrupted_save(checkpoint);
    const Path resume = followed(resume_path(checkpoint)), next = next_resume_path(checkpoint);
    require_replaceable(resume);
    remove_stale_files(resume);

    AtomicFile file(checkpoint);
    write_weights(file, checkpoint, snapshot.weights(), snapshot.run().metadata);
    AtomicFile state(next, is_there(resume) ? resume : followed(checkpoint));
    write_resume(state, next, digest_of(snapshot.weights()), snapshot.run(), snapshot.optimizer().saved(),
                 snapshot.algorithms(), snapshot.optimizer().tensors());
    state.commit();
    std::error_code error;
    try {
        file.commit();
    } catch (...) {
        std::filesystem::remove(next, error);
        throw;
    }
    std::filesystem::rename(next, resume, error);
    if (error)
        throw DataError(fmt::format("{}: renaming failed: {}; the new checkpoint is complete, with its state in {}",
                                    resume.string(), error.message(), next.string()));
    sync_parent_directory(resume);
}

namespace detail {

void save_tensors(const std::vector<NamedTensor>& tensors, const Path& path) {
    const internal::HostWeights weights(tensors);  // first: it waits for devices
    const Writing here(path);
    finish_interrupted_save(path);
    AtomicFile file(path);
    write_weights(file, path, weights.tensors());
    file.commit();
}

void save_both(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer, const RunState& run,
               const Path& checkpoint) {
    internal::HostMemory memory;
    internal::Snapshot snapshot("save_checkpoint", engine, tensors, optimizer, run, memory);
    wait_for(snapshot);
    internal::write_checkpoint(snapshot, checkpoint);
}

std::optional<RunState> load_both(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                                  const Path& checkpoint) {
    internal::require_own(engine, optimizer, "load_checkpoint");
    return read_steadily(checkpoint, [&]() -> std::optional<RunState> {
        const internal::StagedWeights weights(tensors, internal::InputFile(checkpoint), {});
        const auto state = find_state(weights.digest(), checkpoint);
        if (!state) {
            weights.store();
            return std::nullopt;
        }
        StagedRun run(engine, optimizer, *state);
        weights.store();
        return run.store();
    });
}

void save_run(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer, const RunState& run,
              const Path& checkpoint) {
    internal::HostMemory memory;
    internal::Snapshot snapshot("save_resume", engine, tensors, optimizer, run, memory);
    wait_for(snapshot);
    const Writing here(checkpoint);
    finish_interrupted_save(checkpoint);
    if (!is_there(checkpoint))
        throw DataError(fmt::format("{}: no weights; save them before the state of the run", checkpoint.string()));
    const Path resume = internal::followed(resume_path(checkpoint));
    AtomicFile file(resume, internal::followed(checkpoint));
    internal::write_resume(file, resume, internal::digest_of(snapshot.weights()), run, snapshot.optimizer().saved(),
                           snapshot.algorithms(), snapshot.optimizer().tensors());
    file.commit();
}

RunState load_run(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                  const Path& checkpoint) {
    internal::require_own(engine, optimizer, "load_resume");
    const std::string digest = internal::digest_of(internal::HostWeights(tensors).tensors());
    return read_steadily(checkpoint, [&] {
        const auto state = find_state(digest, checkpoint);
        if (!state)
            throw DataError(fmt::format("{}: no state of a run; load_checkpoint accepts weights without a state",
                                        resume_path(checkpoint).string()));
        return StagedRun(engine, optimizer, *state).store();
    });
}

}  // namespace detail

}  // namespace lockstep

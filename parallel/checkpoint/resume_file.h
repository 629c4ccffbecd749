// The file next to a checkpoint with the state of its run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/run_state.h"

namespace lockstep::internal {

/// Throws DataError: the state of a run cannot be used, and how to load without it.
[[noreturn]] void refuse_resume(const std::filesystem::path& path, const std::string& why);

/// Throws InvalidArgument for a state that could not be loaded.
void require_sensible(const RunState& run);

/// An optimizer's data in a resume file, except its tensors.
struct SavedOptimizer {
    std::string name;                                   ///< Optimizer::name
    std::vector<std::map<std::string, double>> groups;  ///< settings by name; flags are 0 and 1
    std::map<std::string, std::int64_t> updates;        ///< by parameter, if there were updates
};

/// Engine::algorithms.
using SavedAlgorithms = std::map<std::string, std::string>;

/// Writes the state of a run: `weights` is the digest of its weights, `tensors` its optimizer's state. The caller calls
/// commit(). Throws InvalidArgument for text that is not UTF-8, DataError if writing fails.
void write_resume(AtomicFile& file, const std::filesystem::path& path, const std::string& weights, const RunState& run,
                  const SavedOptimizer& optimizer, const SavedAlgorithms& algorithms,
                  const std::vector<SafetensorsTensor>& tensors);

/// Name of the tensor that holds a state of a parameter.
inline std::string resume_tensor_name(const std::string& state, const std::string& parameter) {
    return state + '.' + parameter;
}

/// A resume file, completely read and checked.
class ResumeFile {
public:
    /// Throws DataError if it is missing, damaged or has invalid values.
    explicit ResumeFile(const std::filesystem::path& path);

    /// Whether it was written for weights with this digest, which `checkpoint` holds. (Files of version 1 store the
    /// checksum of that file instead.)
    bool belongs_to(const std::string& weights, const std::filesystem::path& checkpoint) const;
    const std::filesystem::path& path() const { return path_; }
    const RunState& run() const { return run_; }
    const SavedOptimizer& optimizer() const { return optimizer_; }
    const SavedAlgorithms& algorithms() const { return algorithms_; }
    /// As resume_tensor_name; files of versions 1 and 2 have SGD's momentum under the parameter's own name.
    std::string tensor_name(const std::string& state, const std::string& parameter) const;
    const SafetensorsFile& tensors() const { return file_; }

private:
    ResumeFile(const std::filesystem::path& path, InputFile opened);
    std::filesystem::path path_;
    bool sealed_;
    SafetensorsFile file_;
    RunState run_;
    SavedOptimizer optimizer_;
    SavedAlgorithms algorithms_;
    int version_ = 0;
    std::string weights_;         ///< from version 2 on
    std::uint32_t checksum_ = 0;  ///< checksum of the checkpoint's bytes, in version 1
};

}  // namespace lockstep::internal

// The tensors of a model on their way to and from a file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/module.h"
#include "lockstep/parallel/checkpoint/host_memory.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/load_options.h"

namespace lockstep::internal {

/// Identifies weights by names, dtypes, shapes and bytes, in any order.
std::string digest_of(const std::vector<SafetensorsTensor>& tensors);
/// The same for the content of a file.
std::string digest_of(const SafetensorsFile& file);

/// Host copies of a model's tensors, tied ones under each of their names.
class HostWeights {
public:
    HostWeights() = default;
    explicit HostWeights(const std::vector<NamedTensor>& tensors);
    /// Lists the copies to be made of the tensors in `store`, into `memory`, which must outlive this; copies the others
    /// now.
    HostWeights(const std::vector<NamedTensor>& tensors, const ParameterStore& store, HostMemory& memory,
                std::vector<StateCopy>& copies);
    const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    std::vector<Tensor> values_;  // owns the memory
    std::vector<SafetensorsTensor> tensors_;
};

/// Writes the bytes of a file of weights that PyTorch can load, in pieces. `name`: of the destination, for messages.
void put_weights(const std::filesystem::path& name, const std::vector<SafetensorsTensor>& weights,
                 SafetensorsMetadata metadata, const std::function<void(std::span<const std::byte>)>& put);

/// Implements load_tensor.
Tensor read_tensor(const std::filesystem::path& path, const std::string& name, const std::string& entry);

/// Weights from a file, read and checked before the model changes.
class StagedWeights {
public:
    /// Reads a safetensors file, an index of several, or a file of torch.save. Throws as `load`.
    StagedWeights(const std::vector<NamedTensor>& tensors, InputFile&& file, const LoadOptions& options);
    const LoadResult& result() const { return result_; }
    /// `digest_of` the model's tensors as they are in the file, without those that the file lacks.
    std::string digest() const;
    /// Copies the weights into the model.
    void store() const;

private:
    struct Value {
        const NamedTensor* target;
        Tensor tensor;  ///< undefined if the file has another shape
    };
    /// `File` is SafetensorsFile, ShardedWeights or PthFile.
    template <class File>
    void stage(const File& file, const std::string& called, const LoadOptions& options);
    template <class File, class Entry>
    void read(const NamedTensor& named, const File& file, const Entry& entry);

    std::vector<NamedTensor> tensors_;
    std::map<const void*, Value> values_;  ///< by identity
    std::vector<std::string> mismatched_;
    LoadResult result_;
};

}  // namespace lockstep::internal

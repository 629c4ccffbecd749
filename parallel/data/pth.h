// The files of PyTorch's torch.save: a zip archive with a pickle that describes the objects, and one record per
// storage. They are parsed without executing anything that a file names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/pth_types.h"

namespace lockstep {

namespace internal {
class InputFile;
}  // namespace internal

/// The state_dict in a file of torch.save, open for reading. Opening reads and checks everything except the tensors'
/// elements; read() may be called from several threads. torch.load with weights_only=True.
class PthFile {
public:
    /// The state_dict is the dictionary called `entry`, if given. Otherwise it is the only dictionary of tensors in the
    /// saved one or, of several, the one called model_state_dict, state_dict or model. If the saved dictionary contains
    /// none, it is the state_dict itself. Objects of classes (argparse.Namespace) next to the tensors are skipped and
    /// never executed. Throws DataError, naming file and offset, if the file is missing, damaged, from PyTorch before
    /// 1.6 or from a big-endian machine. It also throws if the saved object is not a dictionary, or if several of its
    /// dictionaries match. Throws InvalidArgument if `entry` is not found. Uses at most about 60 bytes of memory per
    /// byte of the pickle, and none for elements.
    explicit PthFile(const std::filesystem::path& path, const std::string& entry = {});
    /// From a file that is already open, for internal use.
    PthFile(internal::InputFile&& file, const std::string& entry);
    ~PthFile();
    PthFile(PthFile&&) noexcept;
    PthFile& operator=(PthFile&&) noexcept;

    /// All tensors with supported dtypes, in the order of the dictionary.
    const std::vector<PthEntry>& entries() const;
    /// The other tensors, by name, with PyTorch's name of their dtype ("int16"), "9 dimensions", or the function that
    /// creates them ("torch._utils._rebuild_sparse_tensor").
    const std::map<std::string, std::string>& unsupported() const;
    /// The tensor of that name among entries(), or null. Valid for the lifetime of this object.
    const PthEntry* find(std::string_view name) const;
    /// The names of the state_dict's values other than tensors ("mask_values"), then of values outside it ("epoch").
    const std::vector<std::string>& value_names() const;
    /// The value of that name, or nullopt. Throws DataError if it has more than a million parts or 100 levels.
    std::optional<PthValue> value(std::string_view name) const;
    /// Copies the elements of one tensor, row-major, to host memory. Throws InvalidArgument if the tensor does not
    /// exist or `to` has another size; DataError if reading fails, a checksum differs, or a bool is neither 0 nor 1.
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    struct Content;
    Content& content() const;
    std::unique_ptr<Content> content_;
};

}  // namespace lockstep

// The files of PyTorch's torch.save: a zip archive with a pickle that says what is where, and a record per storage.
// Read by rules of our own: nothing that a file names is ever executed, whatever it holds.
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

/// The state_dict in a file of torch.save, open for reading. Opening reads and checks all but the tensors' elements;
/// read() may be called from several threads. torch.load with weights_only=True.
class PthFile {
public:
    /// The state_dict is the only dictionary of tensors in the one that was saved; or, of several, the one called
    /// model_state_dict, state_dict or model; or the one called `entry`; or, if none is in it, what was saved itself.
    /// Objects of classes (argparse.Namespace) beside the tensors are passed over and never executed. Throws DataError,
    /// naming file and offset, if the file is missing, damaged, from PyTorch before 1.6 or from a big-endian machine,
    /// if what was saved is not a dictionary, or if several of its dictionaries could be meant; InvalidArgument if
    /// `entry` is not found. Takes at most some 60 bytes of memory for each byte of the pickle, and none for elements.
    explicit PthFile(const std::filesystem::path& path, const std::string& entry = {});
    /// One that is open already, for the library's own use.
    PthFile(internal::InputFile&& file, const std::string& entry);
    ~PthFile();
    PthFile(PthFile&&) noexcept;
    PthFile& operator=(PthFile&&) noexcept;

    /// All tensors that Lockstep has the dtype of, in the order of the dictionary.
    const std::vector<PthEntry>& entries() const;
    /// The other ones, by name, with what PyTorch calls their dtype ("int16"), "9 dimensions", or the function that
    /// makes them ("torch._utils._rebuild_sparse_tensor").
    const std::map<std::string, std::string>& unsupported() const;
    /// The tensor of that name among entries(), or null. Lives as long as this object.
    const PthEntry* find(std::string_view name) const;
    /// The names of what the state_dict holds besides tensors ("mask_values"), then of what is beside it ("epoch").
    const std::vector<std::string>& value_names() const;
    /// The value of that name, or nothing. Throws DataError if it has more than a million parts or 100 levels.
    std::optional<PthValue> value(std::string_view name) const;
    /// Copies the elements of one tensor, row-major, to host memory. Throws InvalidArgument when there is no such
    /// tensor or `to` is not of its size; DataError when reading fails, the record does not have its checksum, or a
    /// bool is neither 0 nor 1.
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    struct Content;
    std::unique_ptr<Content> content_;
};

}  // namespace lockstep

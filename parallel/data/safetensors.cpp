#include "lockstep/parallel/data/safetensors.h"

#include <utility>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/safetensors_header.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

using internal::InputFile;
using internal::quote;
using internal::SafetensorsHeader;

struct SafetensorsFile::Content {
    InputFile file;
    SafetensorsHeader header;

    explicit Content(InputFile opened) : file(std::move(opened)), header(internal::read_safetensors_header(file)) {}
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : SafetensorsFile(InputFile(path)) {}
SafetensorsFile::SafetensorsFile(InputFile&& file) : content_(std::make_unique<Content>(std::move(file))) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const SafetensorsFile::Content& SafetensorsFile::content() const {
    return detail::content_of(content_, "SafetensorsFile");
}

const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const { return content().header.entries; }
const std::map<std::string, std::string>& SafetensorsFile::unsupported() const { return content().header.unsupported; }
const SafetensorsMetadata& SafetensorsFile::metadata() const { return content().header.metadata; }

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = content().header.by_name.find(name);
    return found == content().header.by_name.end() ? nullptr : found->second;
}

void SafetensorsFile::read(std::string_view name, std::span<std::byte> to) const {
    const std::string& file = content().file.name();
    const SafetensorsEntry* entry = find(name);
    if (const auto other = unsupported().find(std::string(name)); other != unsupported().end()) {
        throw DataError(file + ": offset 8: tensor " + quote(name) + ": dtype " + quote(other->second) +
                        " is not supported; expected one of F32, F64, F16, BF16, I32, I64, U8, BOOL");
    }
    if (entry == nullptr) {
        throw InvalidArgument(file + ": no tensor " + quote(name) + " among the " + std::to_string(entries().size()) +
                              " of this file; see entries()");
    }
    if (to.size() != entry->bytes) {
        throw InvalidArgument(file + ": tensor " + quote(name) + " takes " + std::to_string(entry->bytes) +
                              " bytes, but " + std::to_string(to.size()) + " were passed; expected the same size");
    }
    content().file.read_at(entry->offset, to);
    if (entry->dtype == DType::boolean) internal::require_bools(to, file, entry->offset, name);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsMetadata& metadata) {
    const internal::SafetensorsLayout layout = internal::lay_out_safetensors(path, tensors, metadata);
    AtomicFile file(path);
    internal::write_tensors(layout, [&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.commit();
}

}  // namespace lockstep

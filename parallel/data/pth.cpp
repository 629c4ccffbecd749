#include "lockstep/parallel/data/pth.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/in_quotes.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/files/stored_bools.h"
#include "lockstep/parallel/data/files/torch_file.h"
#include "lockstep/parallel/data/pth/plain_value.h"
#include "lockstep/parallel/data/pth/refuse.h"
#include "lockstep/parallel/data/pth/state_dict.h"
#include "lockstep/parallel/data/pth/unpickle.h"
#include "lockstep/parallel/data/pth/zip_archive.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

using internal::in_quotes;
using internal::InputFile;
using internal::PthLayout;
using internal::StateDict;
using internal::ZipArchive;
using internal::ZipRecord;

namespace {

/// What the archive's records have before their names: "net/".
std::string directory_of_records(const ZipArchive& zip) {
    constexpr std::string_view pickle = "data.pkl";
    for (const ZipRecord& record : zip.records())
        if (record.name == pickle ||
            (record.name.ends_with(pickle) && record.name.find('/') == record.name.size() - pickle.size() - 1))
            return std::string(record.name.substr(0, record.name.size() - pickle.size()));
    const std::string_view first = zip.records().empty() ? std::string_view() : zip.records().front().name;
    return std::string(first.substr(0, first.find('/') + 1));
}

internal::Unpickled read_pickle(const InputFile& file, const ZipArchive& zip) {
    const std::string directory = directory_of_records(zip);

    const ZipRecord* const order = zip.find(directory + "byteorder");
    constexpr std::size_t longest_order = 16;
    if (order && (order->bytes > longest_order || internal::read_record(file, *order) != "little"))
        throw DataError(
            fmt::format("{}: offset {}: it was written on a big-endian machine", file.name(), order->offset));
    const ZipRecord* const pickle = zip.find(directory + "data.pkl");
    if (!pickle && !zip.records().empty() && zip.records().front().name.ends_with(".npy"))
        throw DataError(
            fmt::format("{}: offset 0: this is an archive of NumPy arrays (.npz), expected a file of "
                        "torch.save; convert it in Python",
                        file.name()));
    if (!pickle)
        internal::refuse_pth(file.name(), 0, fmt::format("the archive has no record {}data.pkl", in_quotes(directory)));
    return internal::unpickle(internal::read_record(file, *pickle), file.name(), pickle->offset);
}

const InputFile& require_archive(const InputFile& file) {
    const internal::TorchFile kind = internal::torch_file(file);
    if (kind == internal::TorchFile::legacy) internal::refuse_legacy(file);
    if (kind == internal::TorchFile::none) internal::refuse_other_kind(file, "a file of torch.save");
    if (kind == internal::TorchFile::none)
        internal::refuse_pth(file.name(), 0, "the file does not begin like an archive");
    return file;
}

/// Copies what lies `strides` elements apart, from the outermost dimension on.
void copy_strided(const std::byte* from, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                  std::size_t element, std::byte*& to) {
    if (shape.empty()) {
        std::memcpy(to, from, element);
        to += element;
        return;
    }
    for (std::int64_t i = 0; i < shape.front(); ++i)
        copy_strided(from + static_cast<std::size_t>(i * strides.front()) * element, shape.subspan(1),
                     strides.subspan(1), element, to);
}

/// Two's complement for integers, the sign for floating numbers.
void negate(DType dtype, std::span<std::byte> elements) {
    visit_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        for (std::size_t at = 0; at < elements.size(); at += sizeof(T)) {
            if constexpr (std::is_integral_v<T>) {
                T value{};
                std::memcpy(&value, elements.data() + at, sizeof(T));
                value = static_cast<T>(std::uint64_t{0} - static_cast<std::uint64_t>(value));
                std::memcpy(elements.data() + at, &value, sizeof(T));
            } else {
                elements[at + sizeof(T) - 1] ^= std::byte{0x80};
            }
        }
    });
}

/// How many elements lie between a tensor's first and last one, these included; there are some.
std::uint64_t reach(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
    std::uint64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += static_cast<std::uint64_t>((shape[d] - 1) * strides[d]);
    return last + 1;
}

bool is_dense(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
    std::int64_t expected = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        if (shape[d] != 1 && strides[d] != expected) return false;
        expected *= shape[d];
    }
    return true;
}

}  // namespace

struct PthFile::Content {
    InputFile file;
    ZipArchive zip;
    internal::Unpickled pickle;
    StateDict state;
    std::unordered_map<std::string_view, std::size_t> by_name;
    std::unordered_map<const ZipRecord*, std::atomic<bool>> intact;  ///< records whose checksum was found right

    Content(InputFile opened, const std::string& entry)
        : file(std::move(opened)),
          zip(require_archive(file)),
          pickle(read_pickle(file, zip)),
          state(internal::find_state_dict(pickle, entry, zip, directory_of_records(zip), file.name())) {
        for (std::size_t i = 0; i < state.entries.size(); ++i) {
            by_name.emplace(state.entries[i].name, i);
            intact.try_emplace(state.layouts[i].record, false);
        }
    }

    /// Fills `to` from byte `begin` of a record on, which is read whole for its checksum once.
    void read_checked(const ZipRecord& record, std::uint64_t begin, std::span<std::byte> to) {
        std::atomic<bool>& known = intact.at(&record);
        if (begin == 0 && to.size() == record.bytes) {
            internal::read_record(file, record, to);
        } else if (record.deflated) {
            std::vector<std::byte> whole(record.bytes);
            internal::read_record(file, record, whole);
            std::memcpy(to.data(), whole.data() + begin, to.size());
        } else {
            if (!known.load()) internal::require_crc(file, record);
            file.read_at(record.offset + begin, to);
        }
        known.store(true);
    }
};

PthFile::PthFile(const std::filesystem::path& path, const std::string& entry) : PthFile(InputFile(path), entry) {}
PthFile::PthFile(InputFile&& file, const std::string& entry)
    : content_(std::make_unique<Content>(std::move(file), entry)) {}
PthFile::~PthFile() = default;
PthFile::PthFile(PthFile&&) noexcept = default;
PthFile& PthFile::operator=(PthFile&&) noexcept = default;

const std::vector<PthEntry>& PthFile::entries() const { return content_->state.entries; }
const std::map<std::string, std::string>& PthFile::unsupported() const { return content_->state.unsupported; }

const std::vector<std::string>& PthFile::value_names() const { return content_->state.value_names; }

std::optional<PthValue> PthFile::value(std::string_view name) const {
    const auto found = content_->state.values.find(name);
    if (found == content_->state.values.end()) return std::nullopt;
    return internal::plain_value(content_->pickle.values, found->second, content_->file.name());
}

const PthEntry* PthFile::find(std::string_view name) const {
    const auto found = content_->by_name.find(name);
    return found == content_->by_name.end() ? nullptr : &content_->state.entries[found->second];
}

void PthFile::read(std::string_view name, std::span<std::byte> to) const {
    const std::string& file = content_->file.name();
    const PthEntry* const entry = find(name);
    if (entry == nullptr)
        throw InvalidArgument(fmt::format("{}: no tensor {} among the {} of this file; see entries()", file,
                                          in_quotes(name), entries().size()));
    if (to.size() != entry->bytes)
        throw InvalidArgument(fmt::format("{}: tensor {} has {} bytes, but {} were passed; expected the same size",
                                          file, in_quotes(name), entry->bytes, to.size()));
    if (to.empty()) return;
    const PthLayout& layout = content_->state.layouts[content_->by_name.at(name)];
    const std::size_t element = size_of(entry->dtype);
    const std::uint64_t begin = layout.offset * element;
    if (is_dense(entry->shape, layout.strides)) {
        content_->read_checked(*layout.record, begin, to);
    } else {
        std::vector<std::byte> around(reach(entry->shape, layout.strides) * element);
        content_->read_checked(*layout.record, begin, around);
        std::byte* next = to.data();
        copy_strided(around.data(), entry->shape, layout.strides, element, next);
    }
    if (layout.negative) negate(entry->dtype, to);
    if (entry->dtype == DType::boolean) internal::require_bools(to, file, layout.record->offset + begin, name);
}

}  // namespace lockstep

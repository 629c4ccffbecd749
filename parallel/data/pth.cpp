#include "lockstep/parallel/data/pth.h"

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/parallel/data/pth/pickle_values.h"
#include "lockstep/parallel/data/pth/state_dict.h"
#include "lockstep/parallel/data/pth/torch_types.h"
#include "lockstep/parallel/data/pth/unpickle.h"
#include "lockstep/parallel/data/pth/zip_archive.h"
#include "lockstep/parallel/data/pth_types.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep::internal {

namespace {

class PlainValueMaker {
public:
    PlainValueMaker(const PickleValues& values, const std::string& file) : values_(values), file_(file) {}

    PthValue make(PickleIndex index, int depth) {
        constexpr int deepest = 100;
        constexpr std::size_t most = 1'000'000;
        if (depth > deepest || ++made_ > most)
            throw DataError(file_ + ": a value has more than a million parts or 100 levels; expected a smaller one");
        const PickleValue& value = values_[index];
        switch (value.kind) {
            case PickleKind::none: return {PthValue::Absent{}};
            case PickleKind::boolean: return {value.value != 0};
            case PickleKind::integer: return {value.value};
            case PickleKind::number: return {std::bit_cast<double>(value.value)};
            case PickleKind::text: return {std::string(values_.text(value))};
            case PickleKind::tuple:
            case PickleKind::list: return {list_of(value, depth)};
            case PickleKind::dictionary: return {dictionary_of(value, depth)};
            case PickleKind::large_integer: return unread("int of more than 64 bits");
            case PickleKind::bytes: return unread("bytes");
            case PickleKind::global: return unread(values_.full_name(index));
            case PickleKind::object: return unread(values_.full_name(values_.object(value).made_by));
            case PickleKind::storage: return unread("storage");
            case PickleKind::tensor: break;
        }
        return unread("torch.Tensor");
    }

private:
    static PthValue unread(std::string type) { return {PthValue::Unread{std::move(type)}}; }

    PthValue::List list_of(const PickleValue& value, int depth) {
        PthValue::List list;
        for (const PickleIndex item : values_.items(value)) list.push_back(make(item, depth + 1));
        return list;
    }
    PthValue::Dictionary dictionary_of(const PickleValue& value, int depth) {
        PthValue::Dictionary dictionary;
        const std::span<const PickleIndex> items = values_.items(value);
        for (std::size_t i = 0; i < items.size(); i += 2) {
            PthValue key = make(items[i], depth + 1);
            dictionary.push_back({std::move(key), make(items[i + 1], depth + 1)});
        }
        return dictionary;
    }

    const PickleValues& values_;
    const std::string& file_;
    std::size_t made_ = 0;
};

/// The value in the form that readers of a file see. Throws DataError, naming `file`, if it has more than a million
/// parts or 100 levels: a small pickle can describe an endless value.
PthValue plain_value(const PickleValues& values, PickleIndex index, const std::string& file) {
    return PlainValueMaker(values, file).make(index, 0);
}

}  // namespace

}  // namespace lockstep::internal

namespace lockstep {

using internal::InputFile;
using internal::PthLayout;
using internal::quote;
using internal::StateDict;
using internal::ZipArchive;
using internal::ZipRecord;

namespace {

/// Prefix of the names of the archive's records: "net/".
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
        throw DataError(
            fmt::format("{}: offset 0: this is a zip file without the record {}, expected a file of torch.save; if it "
                        "contains such a file, unpack it",
                        file.name(), quote(directory + "data.pkl")));
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

/// Copies elements that are `strides` apart, from the outermost dimension on.
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

/// Two's complement for integers, the sign bit for floating-point numbers.
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

/// Number of elements from a tensor's first one to its last one, inclusive; the tensor is not empty.
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
    std::unordered_map<const ZipRecord*, std::atomic<bool>> intact;  ///< records whose checksum has been verified

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

    /// Fills `to` from byte `begin` of a record on. The whole record is read once to verify its checksum.
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

PthFile::Content& PthFile::content() const { return detail::content_of(content_, "PthFile"); }

const std::vector<PthEntry>& PthFile::entries() const { return content().state.entries; }
const std::map<std::string, std::string>& PthFile::unsupported() const { return content().state.unsupported; }

const std::vector<std::string>& PthFile::value_names() const { return content().state.value_names; }

std::optional<PthValue> PthFile::value(std::string_view name) const {
    const auto found = content().state.values.find(name);
    if (found == content().state.values.end()) return std::nullopt;
    return internal::plain_value(content().pickle.values, found->second, content().file.name());
}

const PthEntry* PthFile::find(std::string_view name) const {
    const auto found = content().by_name.find(name);
    return found == content().by_name.end() ? nullptr : &content().state.entries[found->second];
}

void PthFile::read(std::string_view name, std::span<std::byte> to) const {
    const std::string& file = content().file.name();
    const PthEntry* const entry = find(name);
    if (entry == nullptr)
        throw InvalidArgument(fmt::format("{}: no tensor {} among the {} of this file; see entries()", file,
                                          quote(name), entries().size()));
    if (to.size() != entry->bytes)
        throw InvalidArgument(fmt::format("{}: tensor {} has {} bytes, but {} were passed; expected the same size",
                                          file, quote(name), entry->bytes, to.size()));
    if (to.empty()) return;
    const PthLayout& layout = content().state.layouts[content().by_name.at(name)];
    const std::size_t element = size_of(entry->dtype);
    const std::uint64_t begin = layout.offset * element;
    if (is_dense(entry->shape, layout.strides)) {
        content().read_checked(*layout.record, begin, to);
    } else {
        std::vector<std::byte> around(reach(entry->shape, layout.strides) * element);
        content().read_checked(*layout.record, begin, around);
        std::byte* next = to.data();
        copy_strided(around.data(), entry->shape, layout.strides, element, next);
    }
    if (layout.negative) negate(entry->dtype, to);
    if (entry->dtype == DType::boolean) internal::require_bools(to, file, layout.record->offset + begin, name);
}

}  // namespace lockstep

#include "lockstep/parallel/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/parallel/internal/file.h"
#include "lockstep/runtime/error.h"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace lockstep {
namespace {

using internal::AtomicFile;
using internal::InputFile;
using Json = nlohmann::json;

constexpr std::uint64_t prefix_bytes = 8;
constexpr std::uint64_t longest_header = 100'000'000;  // the limit of the reference implementation
constexpr const char* metadata_key = "__metadata__";

struct TypeName {
    DType dtype;
    std::string_view name;
};
constexpr std::array<TypeName, 8> type_names = {{{DType::f32, "F32"},
                                                 {DType::f64, "F64"},
                                                 {DType::f16, "F16"},
                                                 {DType::bf16, "BF16"},
                                                 {DType::i32, "I32"},
                                                 {DType::i64, "I64"},
                                                 {DType::u8, "U8"},
                                                 {DType::boolean, "BOOL"}}};

/// product(shape) * element, or nothing where it does not fit in 63 bits.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::size_t element) {
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    std::uint64_t bytes = element;
    for (const std::int64_t dimension : shape) {
        const auto factor = static_cast<std::uint64_t>(dimension);
        if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / factor) return std::nullopt;
        bytes *= factor;
    }
    return bytes;
}

/// A name as it may stand in a message of one line, whatever the file put into it.
std::string in_quotes(std::string_view text) {
    constexpr std::size_t longest = 200;
    std::string result = "'";
    for (const char c : text.substr(0, longest)) result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    return result + (text.size() > longest ? "...'" : "'");
}

class HeaderReader {
public:
    explicit HeaderReader(const InputFile& file) : file_(file) {}

    void read(std::vector<SafetensorsEntry>& entries, SafetensorsMetadata& metadata) {
        if (file_.size() < prefix_bytes)
            refuse(file_.size(), "the file ends within the 8 bytes of the header's length");
        std::array<std::byte, prefix_bytes> prefix{};
        file_.read_at(0, prefix);
        const auto length = std::bit_cast<std::uint64_t>(prefix);
        if (length > longest_header) {
            refuse(0, "the header's length is " + std::to_string(length) + ", more than " +
                          std::to_string(longest_header) + " bytes");
        }
        if (length > file_.size() - prefix_bytes) {
            refuse(0, "the header's length is " + std::to_string(length) + ", but only " +
                          std::to_string(file_.size() - prefix_bytes) + " bytes follow");
        }
        data_start_ = prefix_bytes + length;
        std::string text(static_cast<std::size_t>(length), '\0');
        file_.read_at(prefix_bytes, std::as_writable_bytes(std::span(text)));

        const Json header = parse(text);
        if (!header.is_object()) refuse(prefix_bytes, "the header is not a JSON object");
        for (const auto& [name, value] : header.items()) {
            if (name == metadata_key) {
                read_metadata(value, metadata);
            } else {
                entries.push_back(read_entry(name, value));
            }
        }
        check_cover(entries);
    }

private:
    [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
        throw DataError(file_.name() + ": offset " + std::to_string(offset) + ": " + what +
                        "; this is no intact safetensors file, get or save it again");
    }

    /// What is wrong with one tensor's description; the header is reported as the place.
    [[noreturn]] void refuse_entry(const std::string& name, const std::string& what) const {
        refuse(prefix_bytes, "tensor " + in_quotes(name) + ": " + what);
    }

    Json parse(const std::string& text) const {
        // nlohmann's parser takes a 0 for the end of the text and the last of equal keys for all of them
        if (const std::size_t zero = text.find('\0'); zero != std::string::npos) {
            refuse(prefix_bytes + zero, "the header holds a zero byte");
        }
        if (text.empty() || text.front() != '{') refuse(prefix_bytes, "the header does not begin with '{'");
        constexpr int deepest = 3;
        std::vector<std::set<std::string>> keys(deepest + 1);
        const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
            using Event = Json::parse_event_t;
            if (event == Event::object_start || event == Event::array_start) {
                if (depth >= deepest) refuse(prefix_bytes, "the header is nested too deeply");
                keys[static_cast<std::size_t>(depth) + 1].clear();
            } else if (event == Event::key) {
                const auto& key = value.get_ref<const std::string&>();
                if (!keys[static_cast<std::size_t>(depth)].insert(key).second) {
                    refuse(prefix_bytes, "the name " + in_quotes(key) + " is there twice");
                }
            }
            return true;
        };
        try {
            return Json::parse(text, watch);
        } catch (const Json::parse_error& error) {
            refuse(prefix_bytes + (error.byte > 0 ? error.byte - 1 : 0), "the header is not valid JSON");
        } catch (const Json::exception&) {
            refuse(prefix_bytes, "the header is not valid JSON");
        }
    }

    void read_metadata(const Json& value, SafetensorsMetadata& metadata) const {
        if (!value.is_object()) refuse(prefix_bytes, "__metadata__ is not a JSON object");
        for (const auto& [key, text] : value.items()) {
            if (!text.is_string()) refuse(prefix_bytes, "__metadata__ " + in_quotes(key) + " is not a string");
            metadata.emplace(key, text.get<std::string>());
        }
    }

    std::int64_t read_count(const std::string& name, const Json& value, const char* what) const {
        constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > largest) {
            refuse_entry(name, std::string(what) + " holds something that is not a whole number from 0 to 2^63 - 1");
        }
        return value.get<std::int64_t>();
    }

    SafetensorsEntry read_entry(const std::string& name, const Json& value) const {
        if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
            !value.contains("data_offsets")) {
            refuse_entry(name, "its description is not dtype, shape and data_offsets");
        }
        const Json& dtype = value["dtype"];
        const Json& shape = value["shape"];
        const Json& offsets = value["data_offsets"];
        if (!dtype.is_string()) refuse_entry(name, "its dtype is not a string");
        if (!shape.is_array()) refuse_entry(name, "its shape is not a list");
        if (!offsets.is_array() || offsets.size() != 2) refuse_entry(name, "its data_offsets are not two numbers");

        const auto& type_name = dtype.get_ref<const std::string&>();
        const auto* type =
            std::find_if(type_names.begin(), type_names.end(), [&](const TypeName& t) { return t.name == type_name; });
        if (type == type_names.end()) {
            throw DataError(file_.name() + ": offset " + std::to_string(prefix_bytes) + ": tensor " + in_quotes(name) +
                            ": dtype " + in_quotes(type_name) +
                            " is not supported; convert it to one of F32, F64, F16, BF16, I32, I64, U8, BOOL");
        }
        SafetensorsEntry entry{name, type->dtype, {}, 0, 0};
        for (const Json& dimension : shape) entry.shape.push_back(read_count(name, dimension, "shape"));

        const auto begin = static_cast<std::uint64_t>(read_count(name, offsets[0], "data_offsets"));
        const auto end = static_cast<std::uint64_t>(read_count(name, offsets[1], "data_offsets"));
        const std::uint64_t data_bytes = file_.size() - data_start_;
        if (begin > end || end > data_bytes) {
            refuse_entry(name, "its data_offsets " + std::to_string(begin) + " to " + std::to_string(end) +
                                   " lie outside of the file's " + std::to_string(data_bytes) + " bytes of data");
        }
        if (bytes_of(entry.shape, size_of(entry.dtype)) != end - begin) {
            refuse_entry(name, "its shape and dtype do not take the " + std::to_string(end - begin) +
                                   " bytes between its data_offsets");
        }
        entry.offset = data_start_ + begin;
        entry.bytes = end - begin;
        return entry;
    }

    /// Sorts by place and refuses gaps, overlaps and what lies behind the last tensor.
    void check_cover(std::vector<SafetensorsEntry>& entries) const {
        std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
            return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
        });
        std::uint64_t next = data_start_;
        for (const SafetensorsEntry& entry : entries) {
            if (entry.offset != next) {
                refuse(entry.offset, "tensor " + in_quotes(entry.name) +
                                         " begins here, but the one before it ends at " + std::to_string(next) +
                                         (entry.offset < next ? " (overlap)" : " (gap)"));
            }
            next += entry.bytes;
        }
        if (next != file_.size()) {
            refuse(next, std::to_string(file_.size() - next) + " bytes follow the last tensor");
        }
    }

    const InputFile& file_;
    std::uint64_t data_start_ = 0;
};

[[noreturn]] void refuse_tensor(const std::filesystem::path& path, const std::string& what) {
    throw InvalidArgument("write_safetensors: " + path.string() + ": " + what);
}

/// The 8 bytes of length and the padded JSON for tensors laid out in the order given.
std::string make_header(const std::filesystem::path& path, const std::vector<const SafetensorsTensor*>& tensors,
                        const std::vector<std::uint64_t>& sizes, const SafetensorsMetadata& metadata) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header[metadata_key] = metadata;
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const SafetensorsTensor& tensor = *tensors[i];
        const auto* type = std::find_if(type_names.begin(), type_names.end(),
                                        [&](const TypeName& t) { return t.dtype == tensor.dtype; });
        header[tensor.name] = {
            {"dtype", type->name}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + sizes[i]}}};
        offset += sizes[i];
    }
    std::string text;
    try {
        text = header.dump();
    } catch (const Json::exception&) {
        refuse_tensor(path, "a tensor's name or the metadata is not UTF-8; use UTF-8");
    }
    text.append((prefix_bytes - text.size() % prefix_bytes) % prefix_bytes, ' ');  // so that the data is aligned
    if (text.size() > longest_header) {
        refuse_tensor(path, "the header would take " + std::to_string(text.size()) +
                                " bytes, more than 100 MB; write fewer tensors or shorter names and metadata");
    }
    const auto prefix = std::bit_cast<std::array<char, prefix_bytes>>(static_cast<std::uint64_t>(text.size()));
    return std::string(prefix.begin(), prefix.end()) + text;
}

}  // namespace

struct SafetensorsFile::Content {
    InputFile file;
    std::vector<SafetensorsEntry> entries;
    SafetensorsMetadata metadata;
    std::map<std::string_view, const SafetensorsEntry*> by_name;

    explicit Content(const std::filesystem::path& path) : file(path) {
        HeaderReader(file).read(entries, metadata);
        for (const SafetensorsEntry& entry : entries) by_name.emplace(entry.name, &entry);
    }
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : content_(std::make_unique<Content>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const { return content_->entries; }
const SafetensorsMetadata& SafetensorsFile::metadata() const { return content_->metadata; }

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = content_->by_name.find(name);
    return found == content_->by_name.end() ? nullptr : found->second;
}

void SafetensorsFile::read(std::string_view name, std::span<std::byte> to) const {
    const std::string& file = content_->file.name();
    const SafetensorsEntry* entry = find(name);
    if (entry == nullptr) {
        throw InvalidArgument(file + ": there is no tensor " + in_quotes(name) + " among the " +
                              std::to_string(entries().size()) + " of this file; see entries()");
    }
    if (to.size() != entry->bytes) {
        throw InvalidArgument(file + ": tensor " + in_quotes(name) + " takes " + std::to_string(entry->bytes) +
                              " bytes, but " + std::to_string(to.size()) + " were given; give as many as it takes");
    }
    content_->file.read_at(entry->offset, to);
    if (entry->dtype == DType::boolean) {
        // any other byte would be undefined behaviour once it is read as a bool
        const auto bad = std::find_if(to.begin(), to.end(), [](std::byte b) { return b > std::byte{1}; });
        if (bad != to.end()) {
            throw DataError(file + ": offset " +
                            std::to_string(entry->offset + static_cast<std::uint64_t>(bad - to.begin())) + ": tensor " +
                            in_quotes(name) + " holds a bool that is neither 0 nor 1; get or save the file again");
        }
    }
}

void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsMetadata& metadata) {
    std::set<std::string_view> names;
    std::vector<const SafetensorsTensor*> order;
    for (const SafetensorsTensor& tensor : tensors) {
        if (tensor.name.empty()) refuse_tensor(path, "a tensor has no name; name all of them");
        if (tensor.name == metadata_key) refuse_tensor(path, "no tensor can be called __metadata__; rename it");
        if (!names.insert(tensor.name).second) {
            refuse_tensor(path, "two tensors are called " + in_quotes(tensor.name) + "; rename one");
        }
        const bool negative = std::any_of(tensor.shape.begin(), tensor.shape.end(), [](auto d) { return d < 0; });
        const auto bytes = negative ? std::nullopt : bytes_of(tensor.shape, size_of(tensor.dtype));
        if (!bytes) {
            refuse_tensor(path,
                          "tensor " + in_quotes(tensor.name) + " has a negative or overflowing shape; correct it");
        }
        if (tensor.data == nullptr && *bytes != 0) {
            refuse_tensor(path, "tensor " + in_quotes(tensor.name) + " has no data; pass a pointer to host memory");
        }
        order.push_back(&tensor);
    }
    std::stable_sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
        return size_of(a->dtype) > size_of(b->dtype);
    });
    std::vector<std::uint64_t> sizes;
    for (const SafetensorsTensor* tensor : order) sizes.push_back(*bytes_of(tensor->shape, size_of(tensor->dtype)));

    const std::string header = make_header(path, order, sizes, metadata);
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(header)));
    for (std::size_t i = 0; i < order.size(); ++i) {
        file.write({static_cast<const std::byte*>(order[i]->data), static_cast<std::size_t>(sizes[i])});
    }
    file.commit();
}

}  // namespace lockstep

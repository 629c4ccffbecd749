#include "lockstep/parallel/data/files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;
using namespace safetensors_format;

[[noreturn]] void refuse(const InputFile& file, std::uint64_t offset, const std::string& what) {
    throw DataError(file.name() + ": offset " + std::to_string(offset) + ": " + what +
                    "; not a valid safetensors file (truncated or corrupt)");
}

struct ByteRange {
    std::uint64_t offset, bytes;
    auto operator<=>(const ByteRange&) const = default;
};

/// Receives every token of the header once. No tree is ever built.
class HeaderListener : public nlohmann::json_sax<Json> {
public:
    HeaderListener(const InputFile& file, std::uint64_t data_start, SafetensorsHeader& header)
        : file_(file), data_start_(data_start), header_(header) {}

    /// Ranges of tensors with unsupported dtypes.
    const std::vector<ByteRange>& other_ranges() const { return other_ranges_; }

    bool null() override { return is_ignored() || (where_ == Where::root && key_ == metadata_key) || other_value(); }
    bool boolean(bool) override { return is_ignored() || other_value(); }
    bool number_integer(std::int64_t) override { return is_ignored() || other_value(); }
    bool number_float(double, const std::string&) override { return is_ignored() || other_value(); }
    bool binary(Json::binary_t&) override { return is_ignored() || other_value(); }

    bool number_unsigned(std::uint64_t value) override {
        if (is_ignored()) return true;
        constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        if (where_ != Where::shape && where_ != Where::offsets) return other_value();
        if (value > largest) refuse_count();
        (where_ == Where::shape ? current_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
        return true;
    }

    bool string(std::string& value) override {
        if (is_ignored()) return true;
        if (where_ == Where::metadata) {
            if (!header_.metadata.try_emplace(std::move(key_), std::move(value)).second) refuse_repeated(key_);
            return true;
        }
        if (where_ != Where::tensor || field_ != Field::dtype) return other_value();
        take_type(value);
        return true;
    }

    bool start_object(std::size_t) override {
        if (begins_ignored()) return true;
        go_deeper();
        if (where_ == Where::nowhere)
            where_ = Where::root;
        else if (where_ == Where::root)
            where_ = key_ == metadata_key ? Where::metadata : Where::tensor;
        else
            skip();
        if (where_ == Where::tensor) begin_tensor();
        return true;
    }

    bool end_object() override {
        if (ignored_depth_ > 0) return --ignored_depth_, true;
        --depth_;
        if (where_ == Where::skipped) refuse(file_, prefix_bytes, complaint_);
        if (where_ == Where::tensor) end_tensor();
        where_ = Where::root;
        return true;
    }

    bool start_array(std::size_t) override {
        if (begins_ignored()) return true;
        go_deeper();
        if (where_ == Where::tensor && field_ == Field::shape)
            where_ = Where::shape;
        else if (where_ == Where::tensor && field_ == Field::offsets)
            where_ = Where::offsets;
        else
            skip();
        return true;
    }

    bool end_array() override {
        if (ignored_depth_ > 0) return --ignored_depth_, true;
        --depth_;
        if (where_ == Where::skipped) refuse(file_, prefix_bytes, complaint_);
        where_ = Where::tensor;
        return true;
    }

    bool key(std::string& value) override {
        if (where_ == Where::skipped || ignored_depth_ > 0) return true;
        if (where_ != Where::tensor) {
            key_ = std::move(value);
            if (where_ == Where::root && key_ == metadata_key && std::exchange(has_metadata_, true))
                refuse_repeated(key_);
            return true;
        }
        field_ = value == "dtype"          ? Field::dtype
                 : value == "shape"        ? Field::shape
                 : value == "data_offsets" ? Field::offsets
                                           : Field::unknown;
        if (field_ == Field::unknown) {  // a key of another program
            ignores_next_ = true;
            return true;
        }
        const unsigned bit = 1U << static_cast<unsigned>(field_);
        if ((fields_ & bit) != 0) refuse_repeated(value);
        fields_ |= bit;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
        refuse(file_, prefix_bytes + (position > 0 ? position - 1 : 0), "the header is not valid JSON");
    }

private:
    enum class Where : std::uint8_t { nowhere, root, metadata, tensor, shape, offsets, skipped };
    enum class Field : std::uint8_t { dtype, shape, offsets, unknown };

    std::string of_tensor(const std::string& what) const { return "tensor " + quote(current_.name) + ": " + what; }
    /// Reports an error in one tensor's description, at the position of the header as a whole.
    [[noreturn]] void refuse_tensor(const std::string& what) const { refuse(file_, prefix_bytes, of_tensor(what)); }
    [[noreturn]] void refuse_description() const {
        refuse_tensor("its description is not dtype, shape and data_offsets");
    }
    [[noreturn]] void refuse_repeated(std::string_view name) const {
        refuse(file_, prefix_bytes, "the name " + quote(name) + " is repeated");
    }
    [[noreturn]] void refuse_count() const { refuse(file_, prefix_bytes, complaint_here()); }

    /// The error for a value of the wrong kind.
    std::string complaint_here() const {
        switch (where_) {
            case Where::metadata: return "__metadata__ " + quote(key_) + " is not a string";
            case Where::tensor:
                return of_tensor(field_ == Field::dtype   ? "its dtype is not a string"
                                 : field_ == Field::shape ? "its shape is not a list"
                                                          : "its data_offsets are not two numbers");
            case Where::shape:
            case Where::offsets:
                return of_tensor(std::string(where_ == Where::shape ? "shape" : "data_offsets") +
                                 " has a value that is not an integer from 0 to 2^63 - 1");
            case Where::nowhere:
            case Where::root:
            case Where::skipped: break;
        }
        if (key_ == metadata_key) return "__metadata__ is not a JSON object";
        return "tensor " + quote(key_) + ": its description is not dtype, shape and data_offsets";
    }

    /// Whether a value belongs to a key of a tensor's description that the format does not have.
    bool is_ignored() { return ignored_depth_ > 0 || std::exchange(ignores_next_, false); }
    bool begins_ignored() {
        if (!is_ignored()) return false;
        constexpr int deepest = 100;
        if (++ignored_depth_ > deepest) refuse(file_, prefix_bytes, "the header is nested too deeply");
        return true;
    }

    bool other_value() {
        if (where_ != Where::skipped) refuse(file_, prefix_bytes, complaint_here());
        return true;
    }

    void go_deeper() {
        constexpr int deepest = 3;
        if (depth_ >= deepest) refuse(file_, prefix_bytes, "the header is nested too deeply");
        ++depth_;
    }

    /// Skips a misplaced object or list. It is refused at its end, unless it is nested too deeply.
    void skip() {
        if (where_ == Where::skipped) return;
        complaint_ = complaint_here();
        where_ = Where::skipped;
    }

    void begin_tensor() {
        current_ = {};
        current_.name = std::move(key_);
        type_.clear();
        offsets_.clear();
        fields_ = 0;
    }

    void take_type(std::string& name) {
        const auto* type =
            std::find_if(type_names.begin(), type_names.end(), [&](const TypeName& t) { return t.name == name; });
        if (type != type_names.end())
            current_.dtype = type->dtype;
        else
            type_ = name.empty() ? "''" : std::move(name);
    }

    void end_tensor() {
        constexpr unsigned all = 7;
        if (fields_ != all) refuse_description();
        if (offsets_.size() != 2) refuse_tensor("its data_offsets are not two numbers");
        const auto begin = static_cast<std::uint64_t>(offsets_[0]), end = static_cast<std::uint64_t>(offsets_[1]);
        const std::uint64_t data_bytes = file_.size() - data_start_;
        if (begin > end || end > data_bytes) {
            refuse_tensor("its data_offsets " + std::to_string(begin) + " to " + std::to_string(end) +
                          " are outside of the file's " + std::to_string(data_bytes) + " bytes of data");
        }
        if (type_.empty() && shape_bytes(current_.shape, size_of(current_.dtype)) != end - begin) {
            refuse_tensor("its shape and dtype do not match the " + std::to_string(end - begin) +
                          " bytes between its data_offsets");
        }
        current_.offset = data_start_ + begin;
        current_.bytes = end - begin;
        if (type_.empty()) {
            header_.entries.push_back(std::move(current_));
            return;
        }
        other_ranges_.push_back({current_.offset, current_.bytes});
        if (!header_.unsupported.try_emplace(std::move(current_.name), std::move(type_)).second)
            refuse_repeated(current_.name);
    }

    const InputFile& file_;
    const std::uint64_t data_start_;
    SafetensorsHeader& header_;
    std::vector<ByteRange> other_ranges_;
    Where where_ = Where::nowhere;
    Field field_ = Field::unknown;
    int depth_ = 0, ignored_depth_ = 0;
    bool ignores_next_ = false;
    bool has_metadata_ = false;
    std::string key_, complaint_;
    SafetensorsEntry current_;
    std::string type_;  // name of `current_`'s dtype, if it is unsupported
    std::vector<std::int64_t> offsets_;
    unsigned fields_ = 0;
};

constexpr std::string_view expected = "a safetensors file or one of torch.save";

/// Refuses files of torch.save, whose first bytes would be a much too long header.
void refuse_torch_save(const InputFile& file) {
    const TorchFile kind = torch_file(file);
    if (kind == TorchFile::legacy) refuse_legacy(file);
    if (kind == TorchFile::archive)
        throw DataError(
            file.name() +
            ": offset 0: this is a file of torch.save, not a safetensors file; use PthFile, or load, which reads both");
}

/// Sorts entries by the offset of their data.
void sort_by_offset(std::vector<SafetensorsEntry>& entries) {
    const auto before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
    };
    if (!std::is_sorted(entries.begin(), entries.end(), before))
        std::stable_sort(entries.begin(), entries.end(), before);
}

/// Refuses gaps, overlaps and data after the last tensor.
void require_cover(const InputFile& file, std::uint64_t data_start, const std::vector<SafetensorsEntry>& entries,
                   const std::vector<ByteRange>& other_ranges) {
    std::vector<ByteRange> all = other_ranges;
    for (const SafetensorsEntry& entry : entries) all.push_back({entry.offset, entry.bytes});
    if (!other_ranges.empty()) std::sort(all.begin(), all.end());
    std::uint64_t next = data_start;
    for (const ByteRange& range : all) {
        if (range.offset != next) {
            const auto entry = std::find_if(entries.begin(), entries.end(), [&](const SafetensorsEntry& candidate) {
                return candidate.offset == range.offset && candidate.bytes == range.bytes;
            });
            refuse(file, range.offset,
                   (entry != entries.end() ? "tensor " + quote(entry->name) : "a tensor") +
                       " begins here, but the one before it ends at " + std::to_string(next) +
                       (range.offset < next ? " (overlap)" : " (gap)"));
        }
        next += range.bytes;
    }
    if (next != file.size()) {
        refuse(file, next, std::to_string(file.size() - next) + " bytes follow the last tensor");
    }
}

void note_names(const InputFile& file, SafetensorsHeader& header) {
    header.by_name.reserve(header.entries.size());
    for (const SafetensorsEntry& entry : header.entries)
        if (!header.by_name.emplace(entry.name, &entry).second || header.unsupported.contains(entry.name))
            refuse(file, prefix_bytes, "the name " + quote(entry.name) + " is repeated");
}

}  // namespace

SafetensorsHeader read_safetensors_header(const InputFile& file) {
    if (file.size() < prefix_bytes) {
        refuse_other_kind(file, expected);
        refuse(file, file.size(), "the file ends within the 8 bytes of the header's length");
    }
    std::array<char, prefix_bytes> prefix{};
    file.read_at(0, std::as_writable_bytes(std::span(prefix)));
    const auto length = std::bit_cast<std::uint64_t>(prefix);
    const bool too_long = length > longest_header;
    if (too_long || length > file.size() - prefix_bytes) {
        refuse_torch_save(file);
        refuse_other_kind(file, expected);
        const std::string is = "the header's length is " + std::to_string(length) + ", ";
        if (too_long) refuse(file, 0, is + "more than " + std::to_string(longest_header) + " bytes");
        refuse(file, 0, is + "but only " + std::to_string(file.size() - prefix_bytes) + " bytes follow");
    }
    std::string text(static_cast<std::size_t>(length), '\0');
    file.read_at(prefix_bytes, std::as_writable_bytes(std::span(text)));
    // nlohmann's parser treats a 0 as the end of the text
    if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
        refuse(file, prefix_bytes + zero, "the header holds a zero byte");
    if (text.empty() || text.front() != '{') refuse(file, prefix_bytes, "the header does not begin with '{'");

    SafetensorsHeader header;
    constexpr std::ptrdiff_t shortest = 48;  // a tensor's description, with its name
    header.entries.reserve(
        static_cast<std::size_t>(std::min(std::count(text.begin(), text.end(), '{'), std::ssize(text) / shortest)));
    const std::uint64_t data_start = prefix_bytes + length;
    HeaderListener listener(file, data_start, header);
    Json::sax_parse(text, &listener);
    sort_by_offset(header.entries);
    note_names(file, header);
    require_cover(file, data_start, header.entries, listener.other_ranges());
    return header;
}

}  // namespace lockstep::internal

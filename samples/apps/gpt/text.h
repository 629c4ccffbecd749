// A text as numbers of its characters, cut into windows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/runtime/tensor.h"

namespace gpt {

/// The characters of `utf8`. Throws DataError for text that is not UTF-8; `what` names it: "the prompt".
std::u32string decoded(std::string_view utf8, const std::string& what);
std::string encoded(std::u32string_view characters);

/// The different characters of a text, in ascending order: number i is character i.
class Alphabet {
public:
    explicit Alphabet(const std::u32string& text);

    std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
    const std::u32string& characters() const { return characters_; }
    /// Throws DataError for a character that is not among them; `what` names the text.
    std::vector<std::int64_t> numbers(std::u32string_view text, const std::string& what) const;

private:
    std::u32string characters_;
};

/// Windows of a text, one after another: row r has the characters from r * context on, and as targets the character
/// after each of them. Characters after the last whole window are not used.
class Windows {
public:
    using Numbers = std::shared_ptr<const std::vector<std::int64_t>>;

    /// Rows [first, first + count) of all windows.
    Windows(Numbers text, std::int64_t context, std::int64_t first, std::int64_t count)
        : text_(std::move(text)), context_(context), first_(first), count_(count) {}
    /// Number of windows in a text of `characters`.
    static std::int64_t count_in(std::int64_t characters, std::int64_t context) {
        return characters > context ? (characters - 1) / context : 0;
    }

    std::int64_t size() const { return count_; }
    std::array<lockstep::RowField, 2> fields() const;
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const;
    std::tuple<lockstep::Tensor, lockstep::Tensor> get(std::int64_t row) const;

private:
    Numbers text_;
    std::int64_t context_, first_, count_;
};

/// The text of a file. Throws DataError if it cannot be read, is empty, or is not UTF-8.
std::u32string read_text(const std::filesystem::path& path);

}  // namespace gpt

#include "lockstep/samples/apps/gpt/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "lockstep/runtime/error.h"

namespace gpt {

namespace ls = lockstep;

namespace {

/// Bits of a byte that follows the first one of a character; nullopt for other bytes.
std::optional<char32_t> continued(unsigned char byte) {
    return (byte & 0xc0u) == 0x80u ? std::optional<char32_t>(byte & 0x3fu) : std::nullopt;
}

/// The character that begins at `at`, which is moved behind it; nullopt if it is not UTF-8.
std::optional<char32_t> next_character(std::string_view text, std::size_t& at) {
    const auto first = static_cast<unsigned char>(text[at++]);
    if (first < 0x80) return first;
    const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4) return std::nullopt;
    char32_t character = first & (0x3fu >> more);
    for (int i = 0; i < more; ++i) {
        const auto bits = at < text.size() ? continued(static_cast<unsigned char>(text[at])) : std::nullopt;
        if (!bits) return std::nullopt;
        character = character << 6 | *bits;
        ++at;
    }
    constexpr char32_t smallest[] = {0, 0x80, 0x800, 0x10000};
    const bool surrogate = character >= 0xd800 && character < 0xe000;
    if (character < smallest[more] || character > 0x10ffff || surrogate) return std::nullopt;
    return character;
}

}  // namespace

std::u32string decoded(std::string_view utf8, const std::string& what) {
    std::u32string characters;
    for (std::size_t at = 0; at < utf8.size();) {
        const std::size_t begin = at;
        const auto character = next_character(utf8, at);
        if (!character)
            throw ls::DataError(
                fmt::format("{}: byte {} is not part of a UTF-8 character; expected UTF-8", what, begin));
        characters.push_back(*character);
    }
    return characters;
}

std::string encoded(std::u32string_view characters) {
    std::string text;
    for (const char32_t character : characters) {
        const int more = character < 0x80 ? 0 : character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
        constexpr unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
        text += static_cast<char>(leads[more] | character >> (6 * more));
        for (int i = more; i-- > 0;) text += static_cast<char>(0x80u | (character >> (6 * i) & 0x3fu));
    }
    return text;
}

Alphabet::Alphabet(const std::u32string& text) {
    const std::set<char32_t> different(text.begin(), text.end());
    characters_.assign(different.begin(), different.end());
}

std::vector<std::int64_t> Alphabet::numbers(std::u32string_view text, const std::string& what) const {
    std::vector<std::int64_t> found;
    for (const char32_t character : text) {
        const auto at = std::lower_bound(characters_.begin(), characters_.end(), character);
        if (at == characters_.end() || *at != character)
            throw ls::DataError(
                fmt::format("{}: the character '{}' is not in the text of the training; expected its {} "
                            "characters",
                            what, encoded({&character, 1}), size()));
        found.push_back(at - characters_.begin());
    }
    return found;
}

std::array<ls::RowField, 2> Windows::fields() const {
    const ls::RowField window{ls::DType::i64, {context_}};
    return {window, window};
}

void Windows::read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const {
    const std::size_t bytes = static_cast<std::size_t>(context_) * sizeof(std::int64_t);
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::int64_t field = 0; field < 2; ++field)
            std::memcpy(to[static_cast<std::size_t>(field)] + i * bytes,
                        text_->data() + (first_ + rows[i]) * context_ + field, bytes);
}

std::tuple<ls::Tensor, ls::Tensor> Windows::get(std::int64_t row) const {
    const auto window = [&](std::int64_t field) {
        return ls::Tensor::from(std::span<const std::int64_t>(text_->data() + (first_ + row) * context_ + field,
                                                              static_cast<std::size_t>(context_)),
                                {context_});
    };
    return {window(0), window(1)};
}

std::u32string read_text(const std::filesystem::path& path) {
    const auto refuse = [&](const char* why) {
        throw ls::DataError(fmt::format("{}: cannot read ({}); expected a text file", path.string(), why));
    };
    if (std::filesystem::is_directory(path)) refuse(std::strerror(EISDIR));
    std::ifstream file(path, std::ios::binary);
    if (!file) refuse(std::strerror(errno));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.empty()) throw ls::DataError(fmt::format("{}: the file is empty; expected text", path.string()));
    return decoded(text, path.string());
}

}  // namespace gpt

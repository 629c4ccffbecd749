// Names that a file chose, in messages.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

/// A name from a file, escaped for a message of one line.
inline std::string in_quotes(std::string_view text) {
    constexpr std::size_t longest = 200;
    std::string result = "'";
    for (const char c : text.substr(0, longest)) result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    return result + (text.size() > longest ? "...'" : "'");
}

}  // namespace lockstep::internal

// User text in formats that must be UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

/// The same text, with U+FFFD for each byte that is not part of UTF-8: overlong forms and surrogates are not.
std::string as_utf8(std::string_view text);

}  // namespace lockstep::internal

// User text in formats that must be UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

/// The text with U+FFFD for each byte that is not valid UTF-8 (which excludes overlong forms and surrogates).
std::string as_utf8(std::string_view text);

}  // namespace lockstep::internal

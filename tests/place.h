// Where a test is in its source, for what runs in other processes: Catch2 cannot say it there.
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace lockstep::test {

/// "parallel/test_ddp.cpp:31: ".
inline std::string place_of(const std::source_location& where) {
    const std::string_view file = where.file_name();
    const std::size_t tests = file.rfind("/tests/");
    return std::string(tests == std::string_view::npos ? file : file.substr(tests + 7)) + ":" +
           std::to_string(where.line()) + ": ";
}

}  // namespace lockstep::test

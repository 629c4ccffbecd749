#include "lockstep/parallel/comm/store/store_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "lockstep/runtime/error.h"

namespace lockstep {

std::string host_of(std::string_view text, std::string_view what) {
    const auto wrong = [&](std::string_view why) {
        return InvalidArgument(fmt::format("{}: '{}' {}; expected a host name or an IP address", what, text, why));
    };
    constexpr std::string_view blanks = " \t\r\n";
    std::string_view host = text;
    host.remove_prefix(std::min(host.find_first_not_of(blanks), host.size()));
    host = host.substr(0, host.find_last_not_of(blanks) + 1);
    if (host.empty()) throw wrong("does not name a host");
    if (host.front() == '[') {
        const auto end = host.find(']');
        if (end == std::string_view::npos) throw wrong("has an unclosed bracket");
        if (end + 1 < host.size()) throw wrong(host[end + 1] == ':' ? "has a port" : "has text after its bracket");
        host = host.substr(1, end - 1);
        if (std::count(host.begin(), host.end(), ':') < 2) throw wrong("does not have an IPv6 address in its brackets");
    } else if (std::count(host.begin(), host.end(), ':') == 1) {
        throw wrong("has a port");
    }
    if (host.size() > 1 && host.back() == '.') host.remove_suffix(1);
    const auto allowed = [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < 128 && std::isalnum(byte) != 0) || c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
    };
    if (!std::all_of(host.begin(), host.end(), allowed))
        throw wrong("has characters that are not allowed in a host name");
    return std::string(host);
}

std::optional<std::string> master_addr_of_environment() {
    const char* const address = std::getenv("MASTER_ADDR");
    if (!address || !*address) return std::nullopt;
    try {
        return host_of(address, "MASTER_ADDR");
    } catch (const InvalidArgument& error) {
        throw InvalidEnvironment(error.what());
    }
}

}  // namespace lockstep

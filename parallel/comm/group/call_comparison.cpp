#include "lockstep/parallel/comm/group/call_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Description of a call that the ranks compare.
struct CallFingerprint {
    std::array<char, 24> name{};
    std::uint64_t bytes = 0, layout = 0;
    std::int32_t root = 0, dtype = 0, op = 0, on_gpu = 0;
    std::int32_t uneven = 0;
    bool operator==(const CallFingerprint&) const = default;

    /// Whether two ranks make the same call.
    bool matches(CallFingerprint other) const {
        if (uneven != 0 && other.uneven != 0) other.bytes = bytes;
        return *this == other;
    }
};

std::string describe(const CallFingerprint& call) {
    std::string text = fmt::format("{} of {} bytes", call.name.data(), call.bytes);
    if (call.dtype >= 0) text += fmt::format(" of {}", name_of(static_cast<DType>(call.dtype)));
    constexpr std::array<const char*, 5> ops{"sum", "mean", "min", "max", "product"};
    if (call.op >= 0) text += fmt::format(" ({})", ops[static_cast<std::size_t>(call.op) % ops.size()]);
    if (call.root >= 0) text += fmt::format(" with root {}", call.root);
    if (call.on_gpu != 0) text += " on a GPU";
    return text;
}

}  // namespace

bool compares_calls() {
    const char* level = std::getenv("LOCKSTEP_DEBUG");
    const std::string_view text = level ? level : "";
    if (text.empty() || text == "off") return false;
    if (text == "detail") return true;
    throw InvalidEnvironment(fmt::format("LOCKSTEP_DEBUG={}; expected off or detail", text));
}

void compare_calls(Transport& host, int rank, int size, const CollectiveCall& call, Deadline deadline) {
    std::vector<CallFingerprint> all(static_cast<std::size_t>(size));
    CallFingerprint& own = all[static_cast<std::size_t>(rank)];
    call.name.copy(own.name.data(), own.name.size() - 1);
    own.bytes = call.bytes;
    own.uneven = call.uneven ? 1 : 0;
    own.layout = call.layout;
    own.root = call.root;
    own.dtype = call.dtype;
    own.op = call.op;
    own.on_gpu = call.on_gpu ? 1 : 0;
    const std::vector<std::size_t> sizes(all.size(), sizeof(CallFingerprint));
    host.all_gather(&own, all.data(), sizes, deadline);
    for (std::size_t other = 1; other < all.size(); ++other) {
        if (all[other].matches(all[0])) continue;
        host.barrier(deadline);  // all ranks have seen it before the first one leaves
        throw TransportError(fmt::format("the ranks make different calls: rank 0 {}, rank {} {}{}", describe(all[0]),
                                         other, describe(all[other]),
                                         all[other].layout != all[0].layout ? ", cut into different parts" : ""));
    }
}

void compare_parts(Transport& host, int rank, std::span<const std::size_t> sent, std::span<const std::size_t> received,
                   Deadline deadline) {
    std::vector<std::size_t> coming(sent.size());
    const std::vector<std::size_t> sizes(sent.size(), sizeof(std::size_t));
    host.all_to_all(sent.data(), sizes, coming.data(), sizes, deadline);
    struct Difference {
        std::int64_t from = -1;
        std::uint64_t sent = 0, expected = 0;
    };
    std::vector<Difference> all(sent.size());
    Difference& own = all[static_cast<std::size_t>(rank)];
    for (std::size_t from = 0; from < coming.size() && own.from < 0; ++from)
        if (coming[from] != received[from]) own = {static_cast<std::int64_t>(from), coming[from], received[from]};
    const std::vector<std::size_t> parts(all.size(), sizeof(Difference));
    host.all_gather(&own, all.data(), parts, deadline);
    const auto found = std::find_if(all.begin(), all.end(), [](const Difference& one) { return one.from >= 0; });
    if (found == all.end()) return;
    host.barrier(deadline);  // all ranks have seen it before the first one leaves
    throw TransportError(fmt::format("the ranks make different calls: rank {} sends {} bytes where rank {} expects {}",
                                     found->from, found->sent, found - all.begin(), found->expected));
}

}  // namespace lockstep

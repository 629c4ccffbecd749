#include "lockstep/parallel/comm/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/report_failure.h"
#include "lockstep/parallel/comm/store/rank_exits.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

using Milliseconds = Store::Milliseconds;

constexpr Milliseconds time_to_leave(5000);
/// Time for the other ranks to read why the rendezvous failed.
constexpr Milliseconds time_to_hear(300);
/// The key that all ranks wait for: `complete` if all have arrived or, after `given_up`, the reason why the rendezvous
/// failed.
constexpr std::string_view verdict = "verdict", complete = "complete", given_up = "! ";
/// Number of ranks that have arrived.
constexpr std::string_view arrivals = "arrivals";
/// Reason why a process was rejected.
constexpr std::string_view stranger = "stranger";

/// Prefix of the job's keys in a store that may serve other jobs as well.
constexpr std::string_view prefix = "lockstep/";
/// Maximum number of missing ranks that are named.
constexpr std::size_t max_to_name = 16;
/// If torchrun's agent holds a port, rank 0 uses one of this many ports after it.
constexpr int ports_to_try = 16;

/// The parts of "tcp://host:port?rank=0&world_size=2".
struct InitMethod {
    std::string scheme, host, path;
    int port = 0;
    std::optional<int> rank, world_size;
};

[[noreturn]] void malformed(const std::string& text) {
    throw InvalidArgument(
        fmt::format("rendezvous: init method '{}'; expected env://, tcp://HOST:PORT or file:///PATH", text));
}

int number_in(std::string_view digits, const std::string& whole) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value < 0) malformed(whole);
    return value;
}

InitMethod parse(const std::string& text) {
    InitMethod method;
    const auto colon = text.find("://");
    if (colon == std::string::npos) malformed(text);
    method.scheme = text.substr(0, colon);
    std::string rest = text.substr(colon + 3);
    if (const auto question = rest.find('?'); question != std::string::npos) {
        std::string_view query = std::string_view(rest).substr(question + 1);
        while (!query.empty()) {
            const auto end = std::min(query.find('&'), query.size());
            const std::string_view entry = query.substr(0, end);
            if (entry.starts_with("rank="))
                method.rank = number_in(entry.substr(5), text);
            else if (entry.starts_with("world_size="))
                method.world_size = number_in(entry.substr(11), text);
            else
                malformed(text);
            query.remove_prefix(std::min(end + 1, query.size()));
        }
        rest.resize(question);
    }
    if (method.scheme == "tcp") {
        const auto last = rest.rfind(':');
        if (last == std::string::npos || last == 0) malformed(text);
        method.host = host_of(rest.substr(0, last), fmt::format("rendezvous: init method '{}'", text));
        method.port = number_in(std::string_view(rest).substr(last + 1), text);
        if (method.port < 1 || method.port > 65535) malformed(text);
    } else if (method.scheme == "file") {
        if (rest.size() < 2 || rest.front() != '/') malformed(text);
        method.path = rest;
    } else if (method.scheme != "env" || !rest.empty()) {
        malformed(text);
    }
    return method;
}

/// Rank or world size from two sources, which must not contradict each other.
std::optional<int> agreed(const char* what, std::optional<int> a, std::optional<int> b) {
    if (a && b && *a != *b)
        throw InvalidArgument(fmt::format("rendezvous: the {} is both {} and {}; expected one value", what, *a, *b));
    return a ? a : b;
}

void take_address(RankInfo& info) {
    if (const auto address = master_addr_of_environment()) info.master_addr = *address;
    info.master_port = static_cast<int>(environment::integer("MASTER_PORT", 1, 65535).value_or(0));
    if (std::getenv("TORCHELASTIC_RUN_ID")) info.launcher = Launcher::torchrun;  // its agent exists nevertheless
}

void info_from(RankInfo& info, const RendezvousOptions& options, const InitMethod& method) {
    const std::optional<int> rank = agreed("rank", options.rank, method.rank);
    const std::optional<int> world_size = agreed("world size", options.world_size, method.world_size);
    if (rank.has_value() != world_size.has_value())
        throw InvalidArgument(
            "rendezvous: only one of rank and world size; expected both, or neither if the environment sets them");
    if (rank) {
        info = {};
        info.launcher = Launcher::environment;
        if (method.scheme == "env") take_address(info);
        info.rank = info.local_rank = *rank;
        info.world_size = info.local_world_size = *world_size;
    }
    if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size)
        throw InvalidArgument(fmt::format("rendezvous: rank {} of {} processes; expected 0 to {}", info.rank,
                                          info.world_size, std::max(info.world_size, 1) - 1));
}

/// Another process may hold any of the next ports.
void avoid_port_of_agent(TcpStoreOptions& there) {
    const auto variable = [](const char* name) { return std::string_view(std::getenv(name) ? std::getenv(name) : ""); };
    there.job =
        fmt::format("{}/{}/{}", variable("TORCHELASTIC_RUN_ID"), there.port, variable("TORCHELASTIC_RESTART_COUNT"));
    ++there.port;
    there.ports = std::min(ports_to_try, 65536 - there.port);
}

std::shared_ptr<TcpStore> connect_to_store(const TcpStoreOptions& there) {
    try {
        return std::make_shared<TcpStore>(there);
    } catch (const CommunicationError&) {
        report_failure(FailureCause::other_rank);  // rank 0 has not arrived
        throw;
    }
}

std::string key_of(int rank) { return fmt::format("rank/{}", rank); }

/// Distinguishes this process from all others, including those of earlier runs.
std::string signature() {
    std::random_device random;
    return fmt::format("{:08x}{:08x} pid {}", random(), random(), getpid());
}

}  // namespace

Rendezvous::Rendezvous(const RendezvousOptions& options) : failure_(std::make_shared<JobFailure>()) {
    internal::open_standard_streams();
    const InitMethod method = parse(options.init_method);
    if (!options.rank && !method.rank) info_ = rank_info();
    info_from(info_, options, method);
    if (method.scheme == "file") {
        file_ = std::make_shared<FileStore>(method.path, options.time_limit);
        store_ = file_;
    } else if (info_.world_size == 1 && method.scheme == "env") {
        TcpStoreOptions own{.time_limit = options.time_limit, .token = handshake::random_token()};
        server_ = std::make_unique<TcpStoreServer>(own);
        own.port = server_->port();
        store_ = std::make_shared<TcpStore>(own);
    } else {
        const char* token = std::getenv("LOCKSTEP_STORE_TOKEN");
        TcpStoreOptions there{.host = info_.master_addr,
                              .port = info_.master_port,
                              .time_limit = options.time_limit,
                              .token = options.token.empty() && token ? token : options.token,
                              .ports = info_.master_ports,
                              .job = info_.job};
        if (method.scheme == "tcp") {
            there.host = method.host;
            there.port = method.port;
            there.ports = 1;
        }
        if (there.host.empty() || there.port == 0)
            throw InvalidArgument(
                fmt::format("rendezvous: {} processes and no address of rank 0; set MASTER_ADDR and MASTER_PORT, or "
                            "use tcp://HOST:PORT",
                            info_.world_size));
        if (method.scheme == "env" && info_.launcher == Launcher::torchrun) avoid_port_of_agent(there);
        if (info_.rank == 0) server_ = std::make_unique<TcpStoreServer>(there);
        if (server_) there.port = server_->port();
        if (server_) there.ports = 1;
        const auto store = connect_to_store(there);
        there.port = store->port();
        there.ports = 1;
        store_ = store;
        presence_ = std::make_unique<TcpStore>(there);
    }
    store_ = std::make_shared<PrefixStore>(std::string(prefix), store_);
    join(options.time_limit);
}

void Rendezvous::join(Milliseconds timeout) {
    const auto deadline = deadline_in(timeout);
    const std::string size = std::to_string(info_.world_size);
    const std::string in_use = file_ ? "; or another job uses this file" : "";
    if (const std::string found = store_->compare_set("world_size", "", size); found != size) {
        const std::string reason = fmt::format(
            "{}rank {} was started for {} processes, others for {}; expected the same world size on all ranks{}",
            given_up, info_.rank, size, found, in_use);
        store_->compare_set(verdict, "", reason);
        fail(reason);
    }
    const std::string own = signature();
    if (store_->compare_set(key_of(info_.rank), "", own) != own) {
        const std::string reason =
            fmt::format("{}rank {} of {} is used by two processes; expected a unique rank for every process{}",
                        given_up, info_.rank, size, in_use);
        store_->set(stranger, reason);  // the other ranks do not need it
        fail(reason);
    }
    if (presence_)
        presence_->append_on_loss(fmt::format("{}{}", prefix, rank_exits),
                                  format_rank_exit(info_.rank, RankExit::died));
    if (store_->add(arrivals, 1) == info_.world_size) store_->compare_set(verdict, "", complete);
    std::string found;
    try {
        const auto left = std::chrono::duration_cast<Milliseconds>(deadline - RunClock::now());
        found = store_->get(verdict, std::max(left, Milliseconds(0)));
    } catch (const CommunicationError&) {
        give_up(timeout);  // throws the store's error if the store is unreachable
    }
    if (found.starts_with(given_up)) leave_incomplete_job(found);
}

void Rendezvous::give_up(Milliseconds timeout) {
    const std::string other = store_->try_get(stranger).value_or("");
    const std::string reason =
        fmt::format("{}{} within {} ms (world size {}); {}", given_up, missing(), timeout.count(), info_.world_size,
                    other.empty() ? "expected all ranks at the same address" : other.substr(given_up.size()));
    // Ranks that arrive later read it as well.
    if (const std::string said = store_->compare_set(verdict, "", reason); said != complete) leave_incomplete_job(said);
}

std::string Rendezvous::missing() const {
    // Limits the queries to the ranks that have arrived and those that are named: the world size may be a typing error.
    std::vector<int> names;
    for (int rank = 0; rank < info_.world_size && names.size() < max_to_name; ++rank)
        if (!store_->try_get(key_of(rank))) names.push_back(rank);
    const std::int64_t others = info_.world_size - store_->add(arrivals, 0) - std::ssize(names);
    return fmt::format("{} {}{} {} not arrived", names.size() == 1 ? "rank" : "ranks", fmt::join(names, ", "),
                       names.size() == max_to_name && others > 0 ? fmt::format(" and {} more", others) : "",
                       names.size() == 1 ? "has" : "have");
}

void Rendezvous::leave_incomplete_job(const std::string& reason) const {
    report_failure(FailureCause::other_rank);
    try {
        leave(*store_, store_->add(arrivals, 0), time_to_hear);
    } catch (const std::exception&) {  // the others have left: the reason is already known
    }
    fail(reason);
}

void Rendezvous::fail(const std::string& reason) const {
    throw CommunicationError(
        fmt::format("rendezvous: rank {}: {}", info_.rank, std::string_view(reason).substr(given_up.size())));
}

void Rendezvous::leave(Store& store, std::int64_t ranks, Milliseconds patience) const {
    const auto deadline = RunClock::now() + patience;
    std::int64_t left = store.add("left", 1);
    if (file_ && left >= ranks) file_->remove_file(patience);
    const bool others_look = server_ || (file_ && failure_->noted());  // for missing ranks
    for (; others_look && left < ranks && RunClock::now() < deadline; left = store.add("left", 0))
        std::this_thread::sleep_for(Milliseconds(2));
}

Rendezvous::~Rendezvous() {
    const bool failed = failure_->noted();  // then at least one rank will never leave in good order
    const Milliseconds patience = failed ? time_to_hear : time_to_leave;
    try {
        const std::unique_ptr<Store> store = store_->clone(patience);
        record_rank_exit(*store, info_.rank, failed ? RankExit::failed : RankExit::left);
        if (presence_) presence_->append_on_loss(fmt::format("{}{}", prefix, rank_exits), "");
        leave(*store, info_.world_size - (failed ? 1 : 0), patience);
        if (failed && file_) file_->remove_file(patience);
    } catch (const std::exception&) {  // rank 0 has ended or the file was removed: no rank is left to notify
    }
}

}  // namespace lockstep

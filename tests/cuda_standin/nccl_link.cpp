#include "lockstep/tests/cuda_standin/nccl_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

constexpr int kRetryMs = 2;    // while ranks are still missing
constexpr int kPoisonMs = 50;  // how soon a poisoned context is noticed

int new_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// Calls `use` with the abstract address of a rank, which leaves no file behind.
template <class Use>
int with_address(const std::string& name, int rank, Use&& use) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = name + '-' + std::to_string(rank);
    const std::size_t length = std::min(path.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, path.data(), length);
    return use(reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

// The number of bytes moved; 0 for "not now", nullopt if the peer has left.
std::optional<std::size_t> moved(ssize_t result, bool receiving) {
    if (result > 0) return static_cast<std::size_t>(result);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    return result == 0 && !receiving ? std::optional<std::size_t>(0) : std::nullopt;
}

void close_all(std::vector<int>& sockets) {
    for (int& each : sockets) {
        if (each >= 0) ::close(each);
        each = -1;
    }
}

}  // namespace

Link::Link(std::string name, int rank, int size, int gpu)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      gpu_(gpu),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      out_(static_cast<std::size_t>(size), -1),
      in_(static_cast<std::size_t>(size), -1) {}

Link::~Link() {
    close_all(out_);
    close_all(in_);
    ::close(wake_);
}

void Link::fail(ncclResult_t error) {
    int none = ncclSuccess;
    error_.compare_exchange_strong(none, error);
}

void Link::abort() {
    aborted_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

void Link::hang_up() {
    for (const auto* sockets : {&out_, &in_})
        for (const int each : *sockets)
            if (each >= 0) ::shutdown(each, SHUT_RDWR);
}

int Link::listen_here() {
    const int listener = new_socket();
    const int bound = with_address(
        name_, rank_, [&](const sockaddr* address, socklen_t length) { return ::bind(listener, address, length); });
    if (bound == 0 && ::listen(listener, size_) == 0) return listener;
    if (errno == EADDRINUSE) {
        record_mistake(Kind::invalid_argument,
                       "ncclCommInitRank: there is a rank " + std::to_string(rank_) + " of this unique id already");
        fail(ncclInvalidUsage);
    } else {
        fail(ncclSystemError);
    }
    if (listener >= 0) ::close(listener);
    return -1;
}

void Link::connect() {
    const int listener = listen_here();
    if (listener < 0) return;
    meet(listener);
    ::close(listener);
}

// Every rank connects to every other one, and exchanges its Hello with them.
void Link::meet(int listener) {
    const Hello self{rank_, size_, ::getpid(), gpu_};
    std::vector<Hello> hellos{self};
    std::vector<int> nameless;
    while (!aborted_ && error() == ncclSuccess) {
        bool connected = true;
        for (int peer = 0; peer < size_; ++peer) {
            int& socket = out_[static_cast<std::size_t>(peer)];
            if (peer == rank_ || socket >= 0) continue;
            const int fresh = new_socket();
            const int status = with_address(name_, peer, [&](const sockaddr* address, socklen_t length) {
                return ::connect(fresh, address, length);
            });
            if (status == 0 && ::send(fresh, &self, sizeof self, MSG_NOSIGNAL) == sizeof self) {
                socket = fresh;
            } else {
                ::close(fresh);
                connected = false;
            }
        }
        for (int each = 0; (each = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
            nameless.push_back(each);
        std::erase_if(nameless, [&](int socket) {
            Hello hello{};
            const auto got = moved(::recv(socket, &hello, sizeof hello, 0), true);
            if (got && *got == 0) return false;
            if (!got || *got != sizeof hello || hello.rank < 0 || hello.rank >= size_) {
                fail(got ? ncclInvalidUsage : ncclRemoteError);
                ::close(socket);
                return true;
            }
            in_[static_cast<std::size_t>(hello.rank)] = socket;
            hellos.push_back(hello);
            return true;
        });
        if (connected && hellos.size() == static_cast<std::size_t>(size_)) {
            compare(hellos);
            break;
        }
        std::array<pollfd, 2> waiting{pollfd{wake_, POLLIN, 0}, pollfd{listener, POLLIN, 0}};
        ::poll(waiting.data(), waiting.size(), kRetryMs);
    }
    close_all(nameless);
}

// Devices have the same bus ids in every process of a test: only devices of one process can be identical.
void Link::compare(const std::vector<Hello>& hellos) {
    std::string wrong;
    for (const Hello& one : hellos) {
        if (one.size != size_)
            wrong = "rank " + std::to_string(one.rank) + " has " + std::to_string(one.size) + " ranks rather than " +
                    std::to_string(size_);
        for (const Hello& other : hellos)
            if (one.rank < other.rank && one.pid == other.pid && one.gpu == other.gpu)
                wrong = "ranks " + std::to_string(one.rank) + " and " + std::to_string(other.rank) + " share a GPU";
    }
    if (wrong.empty()) return;
    record_mistake(Kind::invalid_argument, "ncclCommInitRank: " + wrong);
    fail(ncclInvalidUsage);
}

// Sends as much as possible without waiting. False if the peer has left.
bool Link::push(int peer, Flow& flow) {
    const int socket = out_[static_cast<std::size_t>(peer)];
    while (flow.at < flow.queue.size()) {
        const Transfer& one = *flow.queue[flow.at];
        const bool head = flow.done < sizeof(Frame);
        const char* from =
            head ? reinterpret_cast<const char*>(&one.frame) + flow.done : one.data + (flow.done - sizeof(Frame));
        const std::size_t left = sizeof(Frame) + (head ? 0 : one.frame.bytes) - flow.done;
        if (left > 0) {
            const auto sent = moved(::send(socket, from, left, MSG_NOSIGNAL), false);
            if (!sent) return false;
            if (*sent == 0) break;
            flow.done += *sent;
        }
        if (flow.done == sizeof(Frame) + one.frame.bytes) {
            ++flow.at;
            flow.done = 0;
        }
    }
    std::array<char, 64> bytes{};
    while (flow.acknowledged < flow.queue.size()) {
        const std::size_t missing = std::min(bytes.size(), flow.queue.size() - flow.acknowledged);
        const auto got = moved(::recv(socket, bytes.data(), missing, 0), true);
        if (!got) return false;
        if (*got == 0) break;
        flow.acknowledged += *got;
    }
    return true;
}

bool Link::pull(int peer, Flow& flow) {
    const int socket = in_[static_cast<std::size_t>(peer)];
    for (;;) {
        while (flow.acknowledged < flow.at) {
            const auto sent = moved(::send(socket, "", 1, MSG_NOSIGNAL), false);
            if (!sent) return false;
            if (*sent == 0) return true;
            ++flow.acknowledged;
        }
        if (flow.at == flow.queue.size()) return true;
        const Transfer& one = *flow.queue[flow.at];
        const bool head = flow.done < sizeof(Frame);
        char* to = head ? reinterpret_cast<char*>(&flow.seen) + flow.done : one.data + (flow.done - sizeof(Frame));
        const std::size_t left = sizeof(Frame) + (head ? 0 : one.frame.bytes) - flow.done;
        if (left > 0) {
            const auto got = moved(::recv(socket, to, left, 0), true);
            if (!got) return false;
            if (*got == 0) return true;
            flow.done += *got;
        }
        if (head && flow.done == sizeof(Frame) && flow.seen != one.frame) {
            const auto text = [](const Frame& frame) {
                return std::to_string(frame.bytes) + " bytes (function " + std::to_string(frame.function) + ", type " +
                       std::to_string(frame.type) + ", operator " + std::to_string(frame.op) + ", root " +
                       std::to_string(frame.root) + ")";
            };
            record_mistake(Kind::invalid_argument, "NCCL: rank " + std::to_string(rank_) + " waits for " +
                                                       text(one.frame) + ", but rank " + std::to_string(peer) +
                                                       " sends " + text(flow.seen));
            fail(ncclInvalidUsage);
            return false;
        }
        if (flow.done == sizeof(Frame) + one.frame.bytes) {
            ++flow.at;
            flow.done = 0;
        }
    }
}

bool Link::run(const std::vector<Transfer>& transfers) {
    std::vector<Flow> outgoing(static_cast<std::size_t>(size_)), incoming(static_cast<std::size_t>(size_));
    for (const Transfer& each : transfers)
        (each.out ? outgoing : incoming)[static_cast<std::size_t>(each.peer)].queue.push_back(&each);
    while (!aborted_ && sticky_error() == cudaSuccess) {
        std::vector<pollfd> waiting{{wake_, POLLIN, 0}};
        bool all_done = true;
        for (int peer = 0; peer < size_; ++peer) {
            const auto index = static_cast<std::size_t>(peer);
            Flow& to = outgoing[index];
            Flow& from = incoming[index];
            if (to.open()) to.broken = !push(peer, to);
            if (from.open()) from.broken = !pull(peer, from);
            if (to.broken || from.broken) fail(ncclRemoteError);
            all_done = all_done && !to.broken && !from.broken && !to.open() && !from.open();
            const auto writes_if = [](bool wanted) { return static_cast<short>(wanted ? POLLOUT : 0); };
            if (to.open())
                waiting.push_back({out_[index], static_cast<short>(POLLIN | writes_if(to.at < to.queue.size())), 0});
            if (from.open())
                waiting.push_back({in_[index],
                                   static_cast<short>((from.at < from.queue.size() ? POLLIN : 0) |
                                                      writes_if(from.acknowledged < from.at)),
                                   0});
        }
        if (all_done) return true;
        ::poll(waiting.data(), waiting.size(), kPoisonMs);
    }
    return false;
}

}  // namespace standin

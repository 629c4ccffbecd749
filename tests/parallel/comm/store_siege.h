// Those who would keep a store's server from its work, and what that costs the server's process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/parallel/comm/raw_client.h"
#include "lockstep/tests/patience.h"

namespace lockstep::testing {

/// Variable of the environment, for runs by hand with more of it.
inline int number_from(const char* variable, int otherwise) {
    const char* value = std::getenv(variable);
    return value ? std::atoi(value) : otherwise;
}

/// Of a process.
inline std::ptrdiff_t open_descriptors(pid_t process) {
    return std::distance(std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd"),
                         std::filesystem::directory_iterator());
}

inline std::ptrdiff_t resident_mib(pid_t process) {
    std::ptrdiff_t all = 0, resident = 0;
    std::ifstream("/proc/" + std::to_string(process) + "/statm") >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE) >> 20;
}

/// Connects as often as it can, up to `count` at a time, says `word` and no more, and comes again when it is sent away.
class Crowd {
public:
    Crowd(int port, int count, std::string word = {})
        : port_(port), count_(count), word_(std::move(word)), thread_([this] { besiege(); }) {}
    ~Crowd() {
        stopping_ = true;
        thread_.join();
    }
    int connections() const { return connections_; }

private:
    void besiege() {
        std::vector<Descriptor> sockets(static_cast<std::size_t>(count_));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<std::uint16_t>(port_));
        while (!stopping_) {
            for (Descriptor& socket : sockets) {
                if (stopping_) return;
                char bytes[256];
                const ssize_t here = socket ? recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) : 0;
                if (here > 0 || (here < 0 && errno == EAGAIN)) continue;
                socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
                connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
                send(socket.get(), word_.data(), word_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
                ++connections_;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    const int port_, count_;
    const std::string word_;
    std::atomic<bool> stopping_{false};
    std::atomic<int> connections_{0};
    std::thread thread_;
};

/// Clients that know the token, ask for `question` as often as it can be sent, and read nothing after the handshake.
class Mutes {
public:
    Mutes(int port, const std::string& token, int count, std::string question) : question_(std::move(question)) {
        while (clients_.size() < static_cast<std::size_t>(count)) clients_.push_back(admitted(port, token));
        thread_ = std::thread([this] { ask(); });
    }
    ~Mutes() {
        stopping_ = true;
        thread_.join();
    }
    std::ptrdiff_t still_there() const {
        return std::count_if(clients_.begin(), clients_.end(), [](const RawClient& one) { return !one.broken(); });
    }

private:
    /// Who comes while strangers press upon the server may be sent away, and comes again.
    static RawClient admitted(int port, const std::string& token) {
        const auto late = std::chrono::steady_clock::now() + test::hang;
        for (;;) {
            try {
                RawClient client(port);
                if (client.shake_hands(token)) return client;
            } catch (const CommunicationError&) {
                if (std::chrono::steady_clock::now() > late) throw;
            }
            if (std::chrono::steady_clock::now() > late) throw Error("the server let nobody in");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
    void ask() {
        while (!stopping_) {
            for (const RawClient& client : clients_) client.push(question_);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    std::string question_;
    std::vector<RawClient> clients_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace lockstep::testing

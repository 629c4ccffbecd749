// TCP sockets, with ownership and deadlines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

/// A file descriptor that closes itself.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int value) : value_(value) {}
    Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor() { reset(); }
    int get() const { return value_; }
    explicit operator bool() const { return value_ >= 0; }
    void reset() noexcept;

private:
    int release() noexcept;
    int value_ = -1;
};

/// "Connection refused"; with advice if a limit was reached.
std::string text_of(int error);

/// Listens on `host`, on `port` or a free one (0). Throws CommunicationError.
Descriptor listen_on(const std::string& host, int port);
/// Reserves a free port of 127.0.0.1: while it exists the system assigns that port to no other process. A process that
/// requests it by number with SO_REUSEADDR, as `listen_on` does, may listen on it. Throws CommunicationError.
Descriptor hold_free_port();
int port_of(const Descriptor& socket);
/// Whether all addresses of `host` are of the loopback interface. Throws CommunicationError if it has none.
bool is_loopback(const std::string& host);
/// No process listens on the port, at any address of the host.
class ConnectionRefused : public CommunicationError {
public:
    using CommunicationError::CommunicationError;
};
/// One attempt, at every address that `host` has. Throws CommunicationError, or ConnectionRefused.
Descriptor connect_to(const std::string& host, int port, Deadline deadline);

/// Waits until `socket` is ready for `events` of poll. Returns an empty string, or the error.
std::string wait_for(const Descriptor& socket, short events, Deadline deadline);
/// Sends all of `bytes` by `deadline`. Returns an empty string, or the error.
std::string send_all(const Descriptor& socket, std::string_view bytes, Deadline deadline);
/// Receives exactly `size` bytes into `to`. Returns an empty string, or the error.
std::string receive_all(const Descriptor& socket, char* to, std::size_t size, Deadline deadline);

/// Whether `failure`, returned by one of these functions, means that the other side has closed the connection.
bool is_end_of_connection(std::string_view failure);

}  // namespace lockstep

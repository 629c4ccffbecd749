// A key-value store with which processes find each other and agree on small values: addresses, sequence numbers,
// arrivals. Not meant for tensors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Keys are 1 to 1024 bytes, values at most 8 MiB (InvalidArgument otherwise). Different threads may call concurrently,
/// also while a `get` waits. Throws CommunicationError on timeouts and if the other side has closed the connection.
class Store {
public:
    using Milliseconds = std::chrono::milliseconds;
    static constexpr std::size_t max_key_bytes = 1024;
    static constexpr std::size_t max_value_bytes = std::size_t{8} << 20;
    static constexpr Milliseconds default_timeout{300'000};

    Store() = default;
    virtual ~Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    virtual void set(std::string_view key, std::string_view value) = 0;
    /// Waits until the key is set.
    virtual std::string get(std::string_view key, Milliseconds time_limit) = 0;
    std::string get(std::string_view key) { return get(key, time_limit()); }
    /// nullopt if the key is not set; does not wait.
    virtual std::optional<std::string> try_get(std::string_view key) = 0;
    /// Adds to the decimal number that the key holds (0 if it is not set) and returns the sum. Throws
    /// CommunicationError if the value is not a number, or if the sum overflows.
    virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
    /// Stores `desired` if the key holds `expected`, or if it is not set and `expected` is empty. Returns its value
    /// afterwards; empty if it is still not set.
    virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
    /// Returns true if the key was set.
    virtual bool remove(std::string_view key) = 0;
    virtual std::int64_t count() = 0;
    /// The same store with a separate time_limit.
    std::unique_ptr<Store> clone() { return clone(time_limit()); }
    virtual std::unique_ptr<Store> clone(Milliseconds time_limit) = 0;
    /// For a `time_limit` that may be too short to connect: retries for `connect_timeout`.
    std::unique_ptr<Store> clone(Milliseconds time_limit, Milliseconds connect_timeout);
    /// Default for waiting calls without an explicit time limit.
    virtual Milliseconds time_limit() const = 0;
    /// "store of rank 0 at 127.0.0.1:29500", for messages.
    virtual std::string describe() const = 0;

protected:
    static void require_key(std::string_view key);
    static void require_value(std::string_view key, std::string_view value);
};

/// Options of a TcpStore.
struct TcpStoreOptions {
    std::string host = "127.0.0.1";
    int port = 0;
    Store::Milliseconds time_limit = Store::default_timeout;  ///< also for connecting
    /// Shared secret of at most 256 bytes, which should be random. Both sides prove knowledge of it without sending it.
    /// Without a token the host must be a loopback address, and only processes of the server's user are admitted.
    std::string token = {};
    /// Number of ports to try, from `port`: the server uses the first free one, and a store searches all of them.
    int ports = 1;
    /// Not secret: distinguishes this store from those of other jobs on the same ports.
    std::string job = {};
};

/// Holds the keys in memory, at most 256 MiB of them, and serves TcpStores from a background thread until destroyed.
/// Connections that have not proved knowledge of the token are closed after a few seconds, or to make room for new
/// ones. They never use more than 64 descriptors. A client that does not read its answers does not block others. It is
/// closed if more than 64 MiB are buffered for such clients.
class TcpStoreServer {
public:
    /// Listens on `options.host`; port 0: a free one. Throws InvalidArgument if the host is not a loopback address and
    /// the token is empty. Throws CommunicationError if the ports are in use or the address is not local.
    explicit TcpStoreServer(const TcpStoreOptions& options);
    ~TcpStoreServer();
    TcpStoreServer(const TcpStoreServer&) = delete;
    TcpStoreServer& operator=(const TcpStoreServer&) = delete;
    int port() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

/// Has one connection to the server, and opens a second one if a thread calls while the `get` of another one waits.
class TcpStore final : public Store {
public:
    /// Connects. Retries until time_limit if the port does not listen or the server closes the connection early.
    explicit TcpStore(const TcpStoreOptions& options);
    ~TcpStore() override;

    using Store::clone;
    using Store::get;
    void set(std::string_view key, std::string_view value) override;
    std::string get(std::string_view key, Milliseconds time_limit) override;
    std::optional<std::string> try_get(std::string_view key) override;
    std::int64_t add(std::string_view key, std::int64_t amount) override;
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
    bool remove(std::string_view key) override;
    std::int64_t count() override;
    std::unique_ptr<Store> clone(Milliseconds time_limit) override;
    Milliseconds time_limit() const override;
    std::string describe() const override;
    /// Port of the server.
    int port() const;
    /// When this store's connection ends, normally or because the process dies, the server appends `text`, of at most 4
    /// KiB, to the value of the key. A later call replaces it; an empty text cancels it.
    void append_on_loss(std::string_view key, std::string_view text);

private:
    class Connections;
    struct Clone {};
    /// Clone of a store whose server has admitted this process: does not wait for a server that has ended.
    TcpStore(const TcpStoreOptions& options, Clone);
    std::unique_ptr<Connections> connections_;
};

class FilePresence;

/// A store in a file shared by the processes of a job, all of the same user. Its content lasts while a process has it
/// open: a process that opens a file left by killed processes starts with an empty store. Network file systems must
/// share locks between machines.
class FileStore final : public Store {
public:
    /// Creates the file, accessible only to this user, unless it exists. Throws InvalidArgument if it cannot be
    /// created, belongs to another user, can be written or replaced by others, or is reached through another user's
    /// link in a directory that all users share; DataError if it is not a store. time_limit also applies to its lock.
    explicit FileStore(std::filesystem::path file, Milliseconds time_limit = default_timeout);

    using Store::clone;
    using Store::get;
    void set(std::string_view key, std::string_view value) override;
    std::string get(std::string_view key, Milliseconds time_limit) override;
    std::optional<std::string> try_get(std::string_view key) override;
    std::int64_t add(std::string_view key, std::int64_t amount) override;
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
    bool remove(std::string_view key) override;
    std::int64_t count() override;
    std::unique_ptr<Store> clone(Milliseconds time_limit) override;
    Milliseconds time_limit() const override { return timeout_; }
    std::string describe() const override;
    /// Removes the file. Later calls on stores that have it open throw CommunicationError, even if another file has its
    /// name by then.
    void remove_file(Milliseconds time_limit);

private:
    FileStore(std::shared_ptr<const FilePresence> presence, Milliseconds time_limit)
        : presence_(std::move(presence)), timeout_(time_limit) {}
    std::shared_ptr<const FilePresence> presence_;  ///< shared with all clones
    Milliseconds timeout_;
};

/// A part of another store: its keys begin with `prefix`.
class PrefixStore final : public Store {
public:
    PrefixStore(std::string prefix, std::shared_ptr<Store> store);

    using Store::clone;
    using Store::get;
    void set(std::string_view key, std::string_view value) override;
    std::string get(std::string_view key, Milliseconds time_limit) override;
    std::optional<std::string> try_get(std::string_view key) override;
    std::int64_t add(std::string_view key, std::int64_t amount) override;
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
    bool remove(std::string_view key) override;
    /// Count for the whole store.
    std::int64_t count() override;
    std::unique_ptr<Store> clone(Milliseconds time_limit) override;
    Milliseconds time_limit() const override;
    std::string describe() const override;

private:
    std::string prefix_;
    std::shared_ptr<Store> store_;
};

}  // namespace lockstep

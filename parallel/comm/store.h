// A small key-value store through which processes find each other and agree on small things: addresses, sequence
// numbers, who has arrived. Not a way to move tensors.
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

namespace lockstep {

/// Keys and values are bytes: keys 1 to 1024 of them, values at most 8 MiB (InvalidArgument otherwise). Calls may come
/// from several threads at once; a call that waits holds up others on the same object, not those on a `clone`. What
/// cannot be done in time, or because the other side has gone, throws CommunicationError.
class Store {
public:
    using Milliseconds = std::chrono::milliseconds;
    static constexpr std::size_t longest_key = 1024;
    static constexpr std::size_t longest_value = std::size_t{8} << 20;
    static constexpr Milliseconds default_timeout{300'000};

    Store() = default;
    virtual ~Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    virtual void set(std::string_view key, std::string_view value) = 0;
    /// Waits until the key is there.
    virtual std::string get(std::string_view key, Milliseconds time_limit) = 0;
    std::string get(std::string_view key) { return get(key, time_limit()); }
    /// Nothing when the key is not there; does not wait.
    virtual std::optional<std::string> try_get(std::string_view key) = 0;
    /// Adds to the decimal number that the key holds (none: 0) and returns the sum. Throws CommunicationError when it
    /// holds something else, or the sum does not fit.
    virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
    /// Stores `desired` when the key holds `expected`, or when it is not there and `expected` is empty. Returns what it
    /// holds afterwards; empty when it is still not there.
    virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
    /// True when the key was there.
    virtual bool remove(std::string_view key) = 0;
    virtual std::int64_t count() = 0;
    /// The same store, for another thread that waits by itself, and with a time_limit of its own.
    std::unique_ptr<Store> clone() { return clone(time_limit()); }
    virtual std::unique_ptr<Store> clone(Milliseconds time_limit) = 0;
    /// For a `time_limit` that may be too short to connect: tries again for `time_to_connect`.
    std::unique_ptr<Store> clone(Milliseconds time_limit, Milliseconds time_to_connect);
    /// Of calls that wait and are not given another one.
    virtual Milliseconds time_limit() const = 0;
    /// "store of rank 0 at 127.0.0.1:29500", for messages.
    virtual std::string describe() const = 0;

protected:
    static void require_key(std::string_view key);
    static void require_value(std::string_view key, std::string_view value);
};

struct TcpStoreOptions {
    std::string host = "127.0.0.1";
    int port = 0;
    Store::Milliseconds time_limit = Store::default_timeout;  ///< also of connecting
    /// Shared secret of at most 256 bytes, best generated at random. Both sides prove that they know it, and neither
    /// sends it. Without one the host must be a loopback address, and only processes of the server's user are admitted.
    std::string token = {};
    /// From `port` on, where others may have taken the first ones: the server takes the first that is free, and a store
    /// looks for it on all of them.
    int ports = 1;
    /// Not secret: tells this store from those of other jobs on the same ports.
    std::string job = {};
};

/// Holds the keys in memory, at most 256 MiB of them, and serves them to TcpStores from a thread of its own, until it
/// is destroyed. Connections that have not proved that they know the token are closed after a few seconds, or to make
/// room for newcomers, and never take more than 64 descriptors. A client that does not read its answers gets no more of
/// them, and is closed when more than 64 MiB are held for such clients; the others are served meanwhile.
class TcpStoreServer {
public:
    /// Listens on `options.host`; port 0: a free one. Throws InvalidArgument when the host is no loopback address and
    /// there is no token, and CommunicationError when the ports are in use or the address is not this machine's.
    explicit TcpStoreServer(const TcpStoreOptions& options);
    ~TcpStoreServer();
    TcpStoreServer(const TcpStoreServer&) = delete;
    TcpStoreServer& operator=(const TcpStoreServer&) = delete;
    int port() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

class TcpStore final : public Store {
public:
    /// Connects, and tries again until the time_limit while nobody listens there or the server closes the connection
    /// early.
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
    /// Of the server.
    int port() const;
    /// When this connection is lost, because the process dies, or at its end, the server appends `text`, of at most 4
    /// KiB, to what the key holds: the last one given, none where that is empty.
    void append_on_loss(std::string_view key, std::string_view text);

private:
    class Connection;
    std::unique_ptr<Connection> connection_;
};

class FilePresence;

/// A file shared by the processes of a job, all of the same user. Its content lasts while some process has it open: a
/// process that opens a file left by processes that were killed begins with an empty store. Network file systems must
/// show the locks of one machine to the others.
class FileStore final : public Store {
public:
    /// Makes the file, for this user alone, unless it is there. Throws InvalidArgument when it cannot, or when the file
    /// belongs to another user or others can write or replace it, and DataError when it is no store. The time_limit is
    /// for its lock as well.
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
    /// Removes the file. Later calls on stores that have it open throw CommunicationError, also when another file has
    /// its name by then.
    void remove_file(Milliseconds time_limit);

private:
    FileStore(std::shared_ptr<const FilePresence> presence, Milliseconds time_limit)
        : presence_(std::move(presence)), timeout_(time_limit) {}
    std::shared_ptr<const FilePresence> presence_;  ///< of this and all its clones
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
    /// Of the whole store.
    std::int64_t count() override;
    std::unique_ptr<Store> clone(Milliseconds time_limit) override;
    Milliseconds time_limit() const override;
    std::string describe() const override;

private:
    std::string prefix_;
    std::shared_ptr<Store> store_;
};

}  // namespace lockstep

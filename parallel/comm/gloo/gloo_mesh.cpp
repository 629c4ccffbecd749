#include "lockstep/parallel/comm/gloo/gloo_mesh.h"

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>
#include <utility>

#include "lockstep/parallel/comm/gloo/gloo_address.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Gloo prefixes the file and line.
std::string GlooMesh::one_line(const std::exception& error) {
    std::string text = error.what();
    const std::size_t end = text.find("] ");
    if (text.starts_with('[') && end != std::string::npos) text.erase(0, end + 2);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

class GlooMesh::Connections final : public gloo::transport::tcp::Context {
public:
    Connections(GlooWatch& watch, std::shared_ptr<gloo::transport::tcp::Device> device, int own_rank, int ranks)
        : Context(std::move(device), own_rank, ranks), watch_(watch) {}

    std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override {
        return buffer(data, bytes);
    }
    std::unique_ptr<GlooBuffer> buffer(void* data, std::size_t bytes) {
        return std::make_unique<GlooBuffer>(watch_, shared_from_this(), data, bytes);
    }
    void close(const std::string& reason) { signalException(reason); }

private:
    GlooWatch& watch_;
};

class GlooMesh::Device final : public gloo::transport::tcp::Device {
public:
    Device(const gloo::transport::tcp::attr& address, GlooWatch& watch)
        : gloo::transport::tcp::Device(address), watch_(watch) {}

    std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
        auto made = std::make_shared<Connections>(watch_, shared_from_this(), rank, size);
        connections = made;
        return made;
    }
    std::weak_ptr<Connections> connections;

private:
    GlooWatch& watch_;
};

namespace {

/// While it exists, new threads do not handle the program's signals.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_{};
};

}  // namespace

/// The group's store with Gloo's interface. Gloo waits for the connection of each peer by itself, also for one that has
/// died, and counts time in which the process was stopped. So a thread closes the connections when a rank has died and
/// at the deadline.
class GlooMesh::Setup final : public gloo::rendezvous::Store {
public:
    using Close = std::function<void(const std::string& reason)>;
    Setup(const GroupInfo& info, Deadline deadline, Close close)
        : store_(*info.store), lost_(info.lost), deadline_(deadline), close_(std::move(close)) {}
    ~Setup() override { finish(); }
    Setup(const Setup&) = delete;
    Setup& operator=(const Setup&) = delete;

    /// Called when all connections exist, none of which is established.
    void set(const std::string& key, const std::vector<char>& data) override {
        store_.set("mesh/" + key, std::string_view(data.data(), data.size()));
        const SignalsBlocked blocked;
        if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
    }
    std::vector<char> get(const std::string& key) override {
        peer_ = key.substr(key.find_last_not_of("0123456789") + 1);
        using std::chrono::milliseconds;
        for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(20))) {
            if (const auto value = store_.try_get("mesh/" + key)) return {value->begin(), value->end()};
            if (const std::string why = reason(); !why.empty()) throw TransportError(why);
            if (RunClock::now() >= deadline_) throw TransportError("it has not arrived before the deadline");
            pause_for(pause);
        }
    }
    void wait(const std::vector<std::string>& keys) override {
        for (const std::string& key : keys) get(key);
    }
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

    /// "rank 2": the peer that is being connected.
    std::string peer() const { return peer_.empty() ? "the others" : "rank " + peer_; }
    /// Why the connections were closed; empty if they are open.
    std::string reason() {
        const std::scoped_lock lock(mutex_);
        return reason_;
    }
    /// Ends the watch.
    void finish() {
        {
            const std::scoped_lock lock(mutex_);
            finished_ = true;
        }
        changed_.notify_all();
        if (watcher_.joinable()) watcher_.join();
    }

private:
    void watch() {
        constexpr int times_between_questions = 4;  // to the store
        std::unique_lock lock(mutex_);
        for (int time = 1; !changed_.wait_for(lock, look_interval, [this] { return finished_; }); ++time) {
            lock.unlock();
            std::string why = lost_ && time % times_between_questions == 0 ? lost_() : std::string();
            if (why.empty() && RunClock::now() >= deadline_) why = "it did not connect before the deadline";
            lock.lock();
            if (why.empty() || finished_) continue;
            reason_ = why;
            lock.unlock();
            return close_(why);
        }
    }

    lockstep::Store& store_;
    const std::function<std::string()> lost_;
    const Deadline deadline_;
    const Close close_;
    std::string peer_;  ///< Gloo asks for keys that end with the rank
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string reason_;
    bool finished_ = false;
    std::thread watcher_;
};

GlooMesh::GlooMesh(const GroupInfo& info, GlooWatch& watch) : watch_(watch) {
    const HeldSignal guard(SIGPIPE);
    const Deadline deadline = deadline_in(info.timeout);
    std::shared_ptr<Device> device;
    Setup setup(info, deadline, [&device](const std::string& reason) {
        if (const auto connections = device->connections.lock()) connections->close(reason);
    });
    try {
        const auto address = gloo::transport::tcp::CreateDeviceAttr(gloo_address(info, deadline));
        {
            const SignalsBlocked blocked;  // Gloo's thread is started here
            device = std::make_shared<Device>(address, watch_);
        }
        auto context = std::make_shared<gloo::rendezvous::Context>(info.rank, info.size);
        constexpr std::chrono::hours beyond_any_deadline(24 * 3652);
        context->setTimeout(beyond_any_deadline);
        std::shared_ptr<gloo::transport::Device> base = device;
        context->connectFullMesh(setup, base);
        setup.finish();
        if (const std::string why = setup.reason(); !why.empty()) throw TransportError(why);
        context_ = std::move(context);
        connections_ = device->connections.lock();
    } catch (const std::exception& error) {
        const std::string why = setup.reason();
        throw TransportError(
            fmt::format("could not connect to {}: {}", setup.peer(), why.empty() ? one_line(error) : why));
    }
}

std::unique_ptr<GlooBuffer> GlooMesh::buffer(void* data, std::size_t bytes) const {
    return connections_->buffer(data, bytes);
}

void GlooMesh::fail(const std::string& reason) {
    close(reason);
    require_alive();
    throw TransportError(reason);
}

void GlooMesh::close(const std::string& reason) noexcept {
    try {
        {
            const std::lock_guard lock(mutex_);
            if (closed_) return;
            reason_ = reason;
            closed_ = true;
        }
        connections_->close(reason);
    } catch (const std::exception&) {  // then the other ranks notice when the connections are destroyed
    }
}

std::string GlooMesh::reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
}

void GlooMesh::require_alive() const {
    if (!closed_) return;
    const std::lock_guard lock(mutex_);
    throw TransportError(reason_);
}

}  // namespace lockstep

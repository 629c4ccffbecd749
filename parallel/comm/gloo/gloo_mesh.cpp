#include "lockstep/parallel/comm/gloo/gloo_mesh.h"

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>

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

/// The group's store with Gloo's interface.
class GlooMesh::Setup final : public gloo::rendezvous::Store {
public:
    Setup(lockstep::Store& store, Deadline deadline) : store_(store), deadline_(deadline) {}

    void set(const std::string& key, const std::vector<char>& data) override {
        store_.set("mesh/" + key, std::string_view(data.data(), data.size()));
    }
    std::vector<char> get(const std::string& key) override {
        peer_ = key.substr(key.find_last_not_of("0123456789") + 1);
        const std::string value = store_.get("mesh/" + key, left());
        return {value.begin(), value.end()};
    }
    void wait(const std::vector<std::string>& keys) override {
        for (const std::string& key : keys) get(key);
    }
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

    /// "rank 2": the peer that is being connected.
    std::string peer() const { return peer_.empty() ? "the others" : "rank " + peer_; }

private:
    std::chrono::milliseconds left() const { return time_until(deadline_); }
    lockstep::Store& store_;
    Deadline deadline_;
    std::string peer_;  ///< Gloo asks for keys that end with the rank
};

GlooMesh::GlooMesh(const GroupInfo& info, GlooWatch& watch) : watch_(watch) {
    const HeldSignal guard(SIGPIPE);
    const Deadline deadline = RunClock::now() + info.timeout;
    Setup setup(*info.store, deadline);
    try {
        const auto address = gloo::transport::tcp::CreateDeviceAttr(gloo_address(info, deadline));
        std::shared_ptr<Device> device;
        {
            sigset_t all, before;  // Gloo's thread, which is started here, must not handle the program's signals
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            const std::unique_ptr<sigset_t, void (*)(sigset_t*)> restore(
                &before, [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); });
            device = std::make_shared<Device>(address, watch_);
        }
        auto context = std::make_shared<gloo::rendezvous::Context>(info.rank, info.size);
        // Gloo allows each connection five times this timeout.
        context->setTimeout(std::max(std::chrono::milliseconds(1), time_until(deadline) / 5));
        std::shared_ptr<gloo::transport::Device> base = device;
        context->connectFullMesh(setup, base);
        context_ = std::move(context);
        connections_ = device->connections.lock();
    } catch (const std::exception& error) {
        throw TransportError(fmt::format("could not connect to {}: {}", setup.peer(), one_line(error)));
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

void GlooMesh::require_alive() const {
    if (!closed_) return;
    const std::lock_guard lock(mutex_);
    throw TransportError(reason_);
}

}  // namespace lockstep
